"""An index of passages: create, extend, search, and restore earlier versions."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from diffretriever.collections import open_collection
from diffretriever.collections.documents import Documents, as_collection
from diffretriever.front.results import Hit, Results
from diffretriever.front.retriever import Retriever, texts_of
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import counted, split_at_commas
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.documents import DocumentScore
from diffretriever.schemas.encode import NO_METADATA, EncodeJob, EncodeSummary
from diffretriever.schemas.language import AUTO
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.retriever import is_neural
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import READ_WORDS

if TYPE_CHECKING:
    from diffretriever.collections import Collection
    from diffretriever.schemas.inspect import VersionChange
    from diffretriever.schemas.metadata import Columns
    from diffretriever.schemas.serve import Explanation
    from diffretriever.search.searcher import Searcher

OnExisting = Literal["error", "skip", "replace"]

_IN_MEMORY = "documents"
"""Default collection name of documents in memory."""
_MOST_HERE = 10_000
"""Larger collections are encoded on Ray."""


class Index:
    """A searchable collection of passages, with the retriever that encoded it.

    Create an index with `Index.create`, or open one with `Index(location)`. An open index stays at its version when
    another process writes; `refresh` moves to the latest version.

    Example:
        >>> import diffretriever as dr
        >>> index = dr.Index.create("indexes/garden", [
        ...     {"id": "roses", "text": "Prune roses in late winter.", "year": 2021},
        ...     {"id": "bread", "text": "Feed the sourdough every day.", "year": 2023},
        ... ])
        >>> [hit.id for hit in index.search("when do I cut roses?", k=1)]
        ['roses']
        >>> len(dr.Index("indexes/garden"))
        2
    """

    def __init__(
        self, location: str | os.PathLike[str], *, version: int | None = None, retriever: Retriever | None = None
    ) -> None:
        """Open an index that `create` or an encode job made.

        Args:
            location: folder or object-store URI.
            version: an earlier version, read-only. Default: the latest.
            retriever: the index's retriever, if it is already loaded, has moved or needs a certain device.

        Raises:
            ValueError: the index or version does not exist, or is damaged.
        """
        self._table = PassageIndex.open(os.fspath(location), version)
        self._fixed = version
        self.retriever = retriever or Retriever(self._table.manifest.retriever)
        self._searcher: Searcher | None = None

    @classmethod
    def create(  # noqa: PLR0913 (users set all options in one call)
        cls,
        location: str | os.PathLike[str],
        documents: Documents,
        *,
        retriever: str | Retriever = "diffretriever-minilm",
        budget: str | Budget | None = None,
        fields: Mapping[str, str] | None = None,
        metadata: str | Sequence[str] | None = None,
        name: str = _IN_MEMORY,
        language: str = AUTO,
        chunk: int | None = None,
        on_ray: bool | None = None,
    ) -> Self:
        """Encode documents and store them in an index. If the index exists, add them to it.

        Args:
            location: folder or object-store URI.
            documents: a list of strings or dicts, a data frame, an Arrow table, or the path, URI or name of a
                collection (see `open_collection`).
            retriever: name of a preset, path of a YAML file, `sentence-transformers/MODEL`, or a `Retriever`.
            budget: slots such as `q4p16`. Overrides the preset's budget.
            fields: maps `id`, `title` and `text` to your field names, such as `{"text": "body"}`.
            metadata: other fields to store, return with hits and filter by; an empty list stores none. Default: all
                fields that are not lists or objects.
            name: name of the collection, if the documents are in memory.
            language: language of the documents for BM25 and sparse scores, such as `de` or `zh`. Default: that of the
                retriever's file or the existing index, else as ir_datasets states, else by script (Latin: `en`).
            chunk: maximum tokens per passage, including the title (words for BM25). Longer documents are split into
                passages `ID#1`, `ID#2`, …; 0 disables splitting. Default: the retriever's limit for folders and text
                files, otherwise 0.
            on_ray: whether to encode on Ray. Default: only above 10,000 passages.

        Raises:
            ValueError: a document is invalid, or another retriever made the index. Nothing is written.

        Example:
            >>> index = dr.Index.create("indexes/notes", ["Water figs weekly."], retriever="bm25", name="notes")
            >>> index.collections
            ['notes']
        """
        if budget is not None and not isinstance(retriever, str):
            raise ValueError("budget: set it on the retriever: Retriever(name, budget=…)")
        collection = _collection(documents, name, fields)
        chosen = Retriever(retriever, budget=budget) if isinstance(retriever, str) else retriever
        uri = os.fspath(location)
        job = EncodeJob(
            collection=collection.name, index=uri, chunk=chunk, metadata=_metadata(metadata), language=language
        )
        chosen = _in_language(chosen.on(collection.name), collection, job)
        _encode(job, collection, chosen, on_ray=on_ray)
        return cls(uri, retriever=chosen)

    def add(
        self,
        documents: Documents,
        *,
        on_existing: OnExisting = "error",
        fields: Mapping[str, str] | None = None,
        metadata: str | Sequence[str] | None = None,
        name: str = _IN_MEMORY,
        chunk: int | None = None,
        on_ray: bool | None = None,
    ) -> EncodeSummary:
        """Encode documents and add them; the arguments are those of `create`.

        Text that is stored under the same id is not encoded again. If the stored text differs, `on_existing` decides:
        `error`, `skip` the document, or `replace` the passage. Name fields that are new to the index in `metadata`.

        Raises:
            ValueError: a document is invalid, or an id is stored with another text. Nothing is written.

        Example:
            >>> index.add([{"id": "figs", "text": "Water figs.", "year": 2024}]).encoded
            1
        """
        job = EncodeJob(
            collection=name, index=self.location, on_existing=on_existing, chunk=chunk, metadata=_metadata(metadata)
        )
        return self._add(job, documents, fields, on_ray=on_ray)

    def sync(
        self,
        documents: Documents,
        *,
        fields: Mapping[str, str] | None = None,
        metadata: str | Sequence[str] | None = None,
        name: str | None = None,
        chunk: int | None = None,
        on_ray: bool | None = None,
    ) -> EncodeSummary:
        """Add, replace and delete passages of a collection so that it equals these documents.

        The arguments are those of `add`. Other collections do not change. If you set no name, documents in memory
        replace the collection `documents` or, without one, the only collection.

        Raises:
            ValueError: a document is invalid, or the index has several collections and `name` is not set. Nothing is
                written.

        Example:
            >>> summary = index.sync([{"id": "bread", "text": "Feed the sourdough every day.", "year": 2023}])
            >>> len(index), "roses" in index
            (1, False)
        """
        job = EncodeJob(
            collection=self._only_collection() if name is None else name,
            index=self.location,
            on_existing="replace",
            sync=True,
            chunk=chunk,
            metadata=_metadata(metadata),
        )
        return self._add(job, documents, fields, on_ray=on_ray)

    def _only_collection(self) -> str:
        names = self.collections
        if not names or _IN_MEMORY in names:
            return _IN_MEMORY
        if len(names) > 1:
            raise ValueError(f"{self.location} has several collections: choose one, such as name='{names[0]}'")
        return names[0]

    def _add(
        self, job: EncodeJob, documents: Documents, fields: Mapping[str, str] | None, *, on_ray: bool | None
    ) -> EncodeSummary:
        self._require_latest()
        collection = _collection(documents, job.collection, fields)
        retriever = _in_language(self.retriever, collection, job)
        summary = _encode(job, collection, retriever, on_ray=on_ray)
        self.refresh()
        return summary

    def delete(self, ids: str | Sequence[str]) -> int:
        """Delete passages in one commit and return their number; raise ValueError if another job is writing.

        Example:
            >>> index.delete(["bread"])
            1
        """
        from diffretriever.index.writer import WriterLock

        self._require_latest()
        with WriterLock(self.location):
            deleted = PassageIndex.open(self.location).delete(texts_of(ids))
        self.refresh()
        return deleted

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        queries: str,
        k: int = 10,
        *,
        mode: Mode | None = None,
        budget: int | None = None,
        filter: str | None = None,
        documents: DocumentScore | None = None,
    ) -> Results: ...

    @overload
    def search(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        mode: Mode | None = None,
        budget: int | None = None,
        filter: str | None = None,
        documents: DocumentScore | None = None,
    ) -> list[Results]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        *,
        mode: Mode | None = None,
        budget: int | None = None,
        filter: str | None = None,  # noqa: A002 (the common name)
        documents: DocumentScore | None = None,
    ) -> Results | list[Results]:
        """Search for one query, or for several at once; return hits in descending order of score.

        Args:
            queries: a string, or a list of strings.
            k: number of passages, or documents, per query.
            mode: score to rank by, such as `dense` or `dense+0.3bm25`. Default: `searcher.default_mode`.
            budget: number of query slots, K_q. Default: the retriever's.
            filter: condition on metadata, such as `year >= 2020 AND lang = 'en'` (`diffretriever.index.filters`).
                Dense, sparse and BM25 scores do not change; min-max sums such as `hybrid` are scaled over the
                matching passages.
            documents: rank documents in place of chunks `ID#1`, `ID#2`, …, by the score of their best chunk (`max`) or
                first chunk (`first`), or by the mean of the 3 best (`mean-3`, any number). A hit shows its best chunk.

        Raises:
            ValueError: the index lacks this score, the retriever has no slots, or the filter or `documents` is invalid.

        Example:
            >>> for hit in index.search("roses in winter", k=2, filter="year < 2022"):
            ...     print(hit.rank, hit.id, hit.metadata)
            1 roses {'year': 2021}
            >>> [results.ids for results in index.search(["roses", "sourdough"], k=1)]
            [['roses'], ['bread']]
        """
        texts = texts_of(queries)
        if k < 1:
            raise ValueError(f"k must be at least 1, and is {k}")
        searcher = self.searcher
        chosen: Mode = mode or searcher.default_mode
        budgets = None if budget is None else [budget] * len(texts)
        hits = searcher.search(texts, k=k, modes=[chosen], budgets=budgets, filter=filter, documents=documents)[chosen]
        rows = self._table.shown(hits.rows())
        named = list(zip(hits.names(), hits.scores_F.tolist(), rows, strict=True))
        results = [
            Results(text, chosen, tuple(Hit(rank, i, score, **row) for rank, (i, score, row) in enumerate(group, 1)))
            for text, group in zip(texts, (named[start:end] for start, end in pairwise(hits.offsets)), strict=True)
        ]
        return results[0] if isinstance(queries, str) else results

    def explain(
        self, query: str, passage_id: str, budget: int | None = None, *, words: int = READ_WORDS
    ) -> Explanation:
        """Explain the scores of a passage for a query: matched slots, common terms (paper Eqs. 2 and 3).

        Args:
            query: text of the query.
            passage_id: id of the passage.
            budget: number of query slots, K_q. Default: the retriever's.
            words: predicted tokens to show per slot, for masked, generated and pooled retrievers.

        Raises:
            ValueError: unknown passage, or the retriever has no encoder.

        Example:
            >>> [term.word for term in index.explain("when do I cut roses?", "roses").terms]
            ['roses']
        """
        passages = self._table.order.passages
        (number,) = passages.numbers_of([passage_id])
        if number < 0:
            raise ValueError(f"{self.location} has no passage '{passage_id}': check the id")
        assert passages.rows_P is not None, "an index has rows"
        row = passages.rows_P[[number]]
        (explanation,) = self.searcher.explain(query, row, budget=budget, words=words)
        return explanation

    @property
    def searcher(self) -> Searcher:
        """The searcher of this version. The first use loads the retriever's weights."""
        if self._searcher is None:
            from diffretriever.search import searcher_of

            encoder = self.retriever.encoder if is_neural(self.retriever.config) else None
            options = SearchOptions(index=self.location, device=self.retriever.device)
            self._searcher = searcher_of(self._table, options, encoder)
        return self._searcher

    @property
    def location(self) -> str:
        """Folder or object-store URI."""
        return self._table.uri

    @property
    def collections(self) -> list[str]:
        """Names of the collections in the index."""
        return list(self._table.count_collections())

    @property
    def version(self) -> int:
        """Number of the open version."""
        return self._table.version

    @property
    def modes(self) -> tuple[Mode, ...]:
        """All scores that you can rank by."""
        return self._table.manifest.retriever.offered_modes

    @property
    def metadata(self) -> Columns:
        """Types of the metadata columns, by name."""
        return dict(self._table.manifest.metadata)

    def versions(self) -> list[VersionChange]:
        """Return the stored versions, oldest first.

        Example:
            >>> [(entry.version, entry.change, entry.added) for entry in index.versions()]
            [(1, 'created', 0), (2, 'appended', 2)]
        """
        from diffretriever.index.history import history

        return history(self._table)

    def at(self, version: int) -> Index:
        """Open a stored version, read-only; raise ValueError if the version was removed."""
        return Index(self.location, version=version, retriever=self.retriever)

    def restore(self, version: int) -> None:
        """Make an earlier version the latest. Later versions stay until they are removed.

        Raises:
            ValueError: the version is no longer stored, or another job is writing. Nothing changes.
        """
        from diffretriever.index.writer import WriterLock

        self._require_latest()
        with WriterLock(self.location):
            PassageIndex.restore(self.location, version)
        self.refresh()

    def refresh(self) -> None:
        """Move to the latest version."""
        if self._fixed is None:
            self._table.refresh()
            self._searcher = None

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, passage_id: str) -> bool:
        return bool(self._table.passages([passage_id]))

    def __getitem__(self, passage_id: str) -> dict[str, Any]:
        """Return a passage's title, text, collection and metadata; raise KeyError for an unknown id."""
        return self._table.passages([passage_id])[passage_id]

    def __repr__(self) -> str:
        return (
            f"Index('{self.location}', {counted(len(self), 'passages')}, {self.retriever.name}, version {self.version})"
        )

    def _require_latest(self) -> None:
        if self._fixed is not None:
            raise ValueError(f"{self.location} is open at version {self._fixed}, read-only: open it without a version")


def _collection(documents: Documents, name: str, fields: Mapping[str, str] | None) -> Collection:
    if not isinstance(documents, str | os.PathLike):
        return as_collection(documents, name, fields)
    try:
        return open_collection(os.fspath(documents), fields)
    except ValueError as error:
        raise ValueError(f"{error} To pass a text, put it in a list: [text]") from None


def _in_language(retriever: Retriever, collection: Collection, job: EncodeJob) -> Retriever:
    from diffretriever.pipelines.language import in_language_of

    config = in_language_of(collection, retriever.config, job.language, job.index)
    return retriever if config is retriever.config else Retriever(config, device=retriever.device)


def _metadata(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else tuple(split_at_commas(names)) or NO_METADATA


def _encode(job: EncodeJob, collection: Collection, retriever: Retriever, *, on_ray: bool | None) -> EncodeSummary:
    # In notebooks, Ray and tqdm warn about missing widgets.
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        from diffretriever.pipelines.chunking import chunked
        from diffretriever.pipelines.encode import encode_collection
        from diffretriever.pipelines.executor import LocalExecutor, few_passages

    collection = chunked(collection, job.chunk, retriever.config)
    if on_ray or (on_ray is None and not few_passages(collection, _MOST_HERE)):
        return encode_collection(job, collection=collection, retriever=retriever.config)
    import torch

    job = job.model_copy(update={"cpus_per_encoder": torch.get_num_threads()})
    local = LocalExecutor(job, retriever.loaded, retriever.device)
    summary = encode_collection(job, collection=collection, retriever=retriever.config, executor=local)
    if local.encoder is not None:
        retriever.encoder = local.encoder
    return summary
