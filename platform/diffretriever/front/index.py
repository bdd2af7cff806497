"""An index of passages: made of documents, added to, searched, taken back to an earlier version."""

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
from diffretriever.schemas.encode import NO_METADATA, EncodeJob, EncodeSummary
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
"""Collection that documents in memory are, unless they are given a name."""
_MOST_HERE = 10_000
"""Passages: more are encoded on Ray."""


class Index:
    """A searchable collection of passages, with the retriever that encoded it.

    An open index does not change when another process writes to it; `refresh` moves to the latest version.
    """

    def __init__(
        self, place: str | os.PathLike[str], *, version: int | None = None, retriever: Retriever | None = None
    ) -> None:
        """Open an index that `create` or an encode job made.

        Args:
            place: folder or object-store URI.
            version: a kept version, to search and not to change; None: the latest.
            retriever: the index's own, if it is loaded already, has moved or belongs on a certain device.

        Raises:
            ValueError: there is no index or no such version, or it is damaged.
        """
        self._table = PassageIndex.open(os.fspath(place), version)
        self._fixed = version
        self.retriever = retriever or Retriever(self._table.manifest.retriever)
        self._searcher: Searcher | None = None

    @classmethod
    def create(  # noqa: PLR0913 (its users say all of this at one place)
        cls,
        place: str | os.PathLike[str],
        documents: Documents,
        *,
        retriever: str | Retriever = "diffretriever-minilm",
        budget: str | Budget | None = None,
        fields: Mapping[str, str] | None = None,
        metadata: str | Sequence[str] | None = None,
        name: str = _IN_MEMORY,
        chunk: int | None = None,
        on_ray: bool | None = None,
    ) -> Self:
        """Encode documents and store them in an index. If the index exists, add them to it.

        Args:
            place: folder or object-store URI.
            documents: a list of strings or dicts, a data frame, an Arrow table, or the path, URI or name of a
                collection (see `open_collection`).
            retriever: name of a preset, path of a YAML file, `sentence-transformers/MODEL`, or a `Retriever`.
            budget: slots such as `q4p16`, instead of those of a preset.
            fields: maps `id`, `title` and `text` to field names of your documents, such as `{"text": "body"}`.
            metadata: names of other fields to store, return with hits and filter by; an empty list stores none; None:
                all fields that are not lists or objects.
            name: name of the collection, if the documents are in memory.
            chunk: maximum tokens per passage, including the title (words for BM25). Longer documents are split into
                passages `ID#1`, `ID#2`, …; 0: no splitting; None: the retriever's limit for folders and text files,
                otherwise 0.
            on_ray: whether to encode on Ray; None: only above 10,000 passages.

        Raises:
            ValueError: a document is invalid, or another retriever made the index. Nothing is written.
        """
        if budget is not None and not isinstance(retriever, str):
            raise ValueError("budget: the retriever given has its own: say Retriever(name, budget=…)")
        collection = _collection(documents, name, fields)
        chosen = Retriever(retriever, budget=budget) if isinstance(retriever, str) else retriever
        chosen = chosen.on(collection.name)
        uri = os.fspath(place)
        job = EncodeJob(collection=collection.name, index=uri, chunk=chunk, metadata=_metadata(metadata))
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

        The same text under the same id is never encoded twice. If an id is stored with another text, `on_existing`
        decides: `error`, `skip` the document, or `replace` it. If a field has no column in the index, `metadata` must
        name the fields to store.

        Raises:
            ValueError: a document is invalid, or an id is stored with another text. Nothing is written.
        """
        job = EncodeJob(
            collection=name, index=self.place, on_existing=on_existing, chunk=chunk, metadata=_metadata(metadata)
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

        The arguments are those of `add`. Passages of other collections stay. Without a name, documents in memory are
        the collection `documents` if the index has it, otherwise its only one.

        Raises:
            ValueError: a document is invalid, or the index has several collections and you name none. Nothing is
                written.
        """
        job = EncodeJob(
            collection=self._only_collection() if name is None else name,
            index=self.place,
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
            raise ValueError(f"{self.place} holds several collections: say which one these are, name='{names[0]}'")
        return names[0]

    def _add(
        self, job: EncodeJob, documents: Documents, fields: Mapping[str, str] | None, *, on_ray: bool | None
    ) -> EncodeSummary:
        self._refuse_fixed()
        summary = _encode(job, _collection(documents, job.collection, fields), self.retriever, on_ray=on_ray)
        self.refresh()
        return summary

    def delete(self, ids: str | Sequence[str]) -> int:
        """Delete passages in one commit and return their number; raises ValueError if another job is writing."""
        from diffretriever.index.writer import WriterLock

        self._refuse_fixed()
        with WriterLock(self.place):
            deleted = PassageIndex.open(self.place).delete(texts_of(ids))
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
    ) -> list[Results]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        *,
        mode: Mode | None = None,
        budget: int | None = None,
        filter: str | None = None,  # noqa: A002 (what everybody calls it)
    ) -> Results | list[Results]:
        """Search for one query, or for several at once; return hits in descending order of score.

        Args:
            queries: a string, or a list of strings.
            k: number of passages per query.
            mode: score to rank by, such as `dense` or `dense+0.3bm25`; None: `searcher.default_mode`.
            budget: number of query slots, K_q; None: the retriever's.
            filter: condition on metadata, such as `year >= 2020 AND lang = 'en'` (`diffretriever.index.filters`).
                Dense, sparse and BM25 scores do not change; sums such as `hybrid` are of the matching passages.

        Raises:
            ValueError: the index has no such score, the retriever has no slots, or the filter is invalid.
        """
        texts = texts_of(queries)
        if k < 1:
            raise ValueError(f"k must be at least 1, and is {k}")
        searcher = self.searcher
        chosen: Mode = mode or searcher.default_mode
        budgets = None if budget is None else [budget] * len(texts)
        hits = searcher.search(texts, k=k, modes=[chosen], budgets=budgets, filter=filter)[chosen]
        rows = self._table.shown(hits.rows())
        found = list(zip(hits.names(), hits.scores_F.tolist(), rows, strict=True))
        results = [
            Results(text, chosen, tuple(Hit(rank, i, score, **row) for rank, (i, score, row) in enumerate(own, 1)))
            for text, own in zip(texts, (found[start:end] for start, end in pairwise(hits.offsets)), strict=True)
        ]
        return results[0] if isinstance(queries, str) else results

    def explain(
        self, query: str, passage_id: str, budget: int | None = None, *, words: int = READ_WORDS
    ) -> Explanation:
        """Explain the scores of a passage for a query: matched slots, common terms (paper Eqs. 2 and 3).

        Args:
            query: a text.
            passage_id: id of the passage.
            budget: number of query slots, K_q; None: the retriever's.
            words: number of predicted tokens to show for each slot, for masked, generated and pooled retrievers.

        Raises:
            ValueError: there is no such passage, or the retriever has no encoder.
        """
        passages = self._table.order.passages
        (number,) = passages.numbers_of([passage_id])
        if number < 0:
            raise ValueError(f"there is no passage '{passage_id}' in {self.place}")
        assert passages.rows_P is not None, "the passages are an index's"
        row = passages.rows_P[[number]]
        (explanation,) = self.searcher.explain(query, row, budget=budget, words=words)
        return explanation

    @property
    def searcher(self) -> Searcher:
        """Searches this version; the retriever's weights are loaded with it."""
        if self._searcher is None:
            from diffretriever.search import searcher_of

            encoder = self.retriever.encoder if is_neural(self.retriever.config) else None
            options = SearchOptions(index=self.place, device=self.retriever.device)
            self._searcher = searcher_of(self._table, options, encoder)
        return self._searcher

    @property
    def place(self) -> str:
        """Folder or URI."""
        return self._table.uri

    @property
    def collections(self) -> list[str]:
        """The names of the collections of its passages."""
        return list(self._table.count_collections())

    @property
    def version(self) -> int:
        """Number of the open version."""
        return self._table.version

    @property
    def modes(self) -> tuple[Mode, ...]:
        """All scores to rank by."""
        return self._table.manifest.retriever.offered_modes

    @property
    def metadata(self) -> Columns:
        """The metadata columns that a filter can name, and their types."""
        return dict(self._table.manifest.metadata)

    def versions(self) -> list[VersionChange]:
        """Return the kept versions, oldest first."""
        from diffretriever.index.history import history

        return history(self._table)

    def at(self, version: int) -> Index:
        """Return a kept version, to search and not to change; raises ValueError if it is not kept."""
        return Index(self.place, version=version, retriever=self.retriever)

    def restore(self, version: int) -> None:
        """Make a kept version the latest again; later versions stay until they are forgotten.

        Raises:
            ValueError: it is not kept, or another job writes to the index. Nothing changes.
        """
        from diffretriever.index.writer import WriterLock

        self._refuse_fixed()
        with WriterLock(self.place):
            PassageIndex.restore(self.place, version)
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
        """Return a passage's title, text, collection and metadata; raises `KeyError` where it is not there."""
        return self._table.passages([passage_id])[passage_id]

    def __repr__(self) -> str:
        return f"Index('{self.place}', {counted(len(self), 'passages')}, {self.retriever.name}, version {self.version})"

    def _refuse_fixed(self) -> None:
        if self._fixed is not None:
            raise ValueError(f"version {self._fixed} of {self.place} stays as it is: change the index without `at`")


def _collection(documents: Documents, name: str, fields: Mapping[str, str] | None) -> Collection:
    if not isinstance(documents, str | os.PathLike):
        return as_collection(documents, name, fields)
    try:
        return open_collection(os.fspath(documents), fields)
    except ValueError as error:
        raise ValueError(f"{error} A text of yours goes in a list: [text]") from None


def _metadata(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else tuple(split_at_commas(names)) or NO_METADATA


def _encode(job: EncodeJob, collection: Collection, retriever: Retriever, *, on_ray: bool | None) -> EncodeSummary:
    # In a notebook Ray and tqdm ask for widgets, which nothing here needs.
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
    here = LocalExecutor(job, retriever.loaded, retriever.device)
    summary = encode_collection(job, collection=collection, retriever=retriever.config, executor=here)
    if here.encoder is not None:
        retriever.encoder = here.encoder
    return summary
