"""An MTEB search model, for retrieval and reranking tasks.

    mteb.evaluate(MtebRetriever("diffretriever-minilm"), mteb.get_tasks(["NFCorpus"]))

It implements `SearchProtocol`, because MTEB's encoders give one vector per text and cannot score MaxSim or sparse.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffretriever.front.index import Index
from diffretriever.front.retriever import Retriever
from diffretriever.index.manifest import bm25_manifest, manifest_of
from diffretriever.presets import in_tag, system_name
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.mode import Mode, lists_of, parse_mode, unweighted
from diffretriever.schemas.retriever import is_neural
from diffretriever.vectors.hits import Hits

if TYPE_CHECKING:
    from mteb.models.model_meta import ModelMeta

_LOG = logging.getLogger(__name__)
_SCORES_AT_ONCE = 10_000_000
"""Query-passage pairs in memory while reranking."""


class MtebRetriever:
    """Indexes the corpus of each MTEB task and searches it. Blank texts are not indexed."""

    def __init__(
        self, retriever: str | Retriever, *, mode: Mode | None = None, folder: str | Path | None = None
    ) -> None:
        """Read the config; the first index loads the weights.

        Args:
            retriever: as for `Index.create`.
            mode: score to rank by, such as `dense` or `dense+bm25`. Default: the retriever's.
            folder: folder that keeps an index per task, split and subset for later evaluations. Default: a temporary
                folder, replaced by the next index.

        Raises:
            ValueError: unknown retriever or score.
        """
        self.retriever = Retriever(retriever) if isinstance(retriever, str) else retriever
        self.mode = self.retriever.config.ranked_by if mode is None else parse_mode(mode)
        if unweighted(self.mode) not in self.retriever.config.offered_modes:
            offered = ", ".join(self.retriever.config.offered_modes)
            raise ValueError(f"{self.retriever.name} has no {self.mode} scores: it has {offered}")
        self._folder = None if folder is None else Path(folder)
        self._remove_temporary: weakref.finalize[..., MtebRetriever] | None = None
        self._index: Index | None = None
        self._ids: list[str] = []

    def index(self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **_: Any) -> None:
        """Index a corpus, a `datasets.Dataset` with `id`, `text` and optionally `title`.

        The task's name becomes the collection's, because some retrievers have instructions for a collection.

        Raises:
            ValueError: all texts are blank, or the folder has an index of this task by another retriever.
        """
        self._ids = [str(name) for name in corpus["id"]]
        titles = corpus["title"] if "title" in corpus.column_names else [""] * len(self._ids)
        texts = zip(titles, corpus["text"], strict=True)
        # MTEB's ids may be invalid here, so the index has row numbers.
        documents = [
            {"id": str(row), "title": title or "", "text": text or ""}
            for row, (title, text) in enumerate(texts)
            if (title or "").strip() or (text or "").strip()
        ]
        if len(documents) < len(self._ids):
            _LOG.warning("%s: %d blank texts are not indexed", task_metadata.name, len(self._ids) - len(documents))
        self._index = None
        path = self._index_folder() / in_tag(f"{task_metadata.name}-{hf_subset}-{hf_split}")
        self._index = Index.create(path, documents, retriever=self.retriever, name=task_metadata.name)

    def search(
        self,
        queries: Any,
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the corpus that was indexed last; return query id → passage id → score.

        Args:
            queries: `datasets.Dataset` with `id`, `text` and optionally `instruction`, which is appended to the text.
            top_k: passages per query.
            top_ranked: for reranking, query id → ids of the passages to rank. Default: all passages.

        Raises:
            ValueError: no corpus is indexed, or a query is a conversation.
        """
        if self._index is None:
            raise ValueError("no corpus has been indexed: call index first, as mteb.evaluate does")
        ids, texts = [str(name) for name in queries["id"]], list(queries["text"])
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("conversations are not supported as queries: pass texts")
        if "instruction" in queries.column_names:
            texts = [
                f"{text} {more}" if more else text for text, more in zip(texts, queries["instruction"], strict=True)
            ]
        if top_ranked is None:
            return dict(zip(ids, self._named(self._searched(texts, top_k)), strict=True))
        return self._ranked(ids, texts, top_k, top_ranked)

    def _ranked(
        self, ids: list[str], texts: list[str], top_k: int, top_ranked: Mapping[str, Sequence[str]]
    ) -> dict[str, dict[str, float]]:
        assert self._index is not None, "the caller has checked this"
        ranked: dict[str, dict[str, float]] = {}
        batch_size = max(1, _SCORES_AT_ONCE // max(1, len(self._index)))
        for start in range(0, len(ids), batch_size):
            batch = slice(start, start + batch_size)
            rankings = self._named(self._searched(texts[batch], len(self._index)))
            for query, scores in zip(ids[batch], rankings, strict=True):
                candidates = {*map(str, top_ranked.get(query, ()))}
                kept = [(passage, score) for passage, score in scores.items() if passage in candidates]
                ranked[query] = dict(kept[:top_k])
        return ranked

    def _searched(self, texts: list[str], k: int) -> Hits:
        assert self._index is not None, "the caller has checked this"
        return self._index.searcher.search(texts, k=k, modes=[self.mode])[self.mode]

    def _named(self, hits: Hits) -> Iterator[dict[str, float]]:
        for query_hits in hits:
            yield {self._ids[int(row)]: score for row, score in query_hits}

    def _index_folder(self) -> Path:
        if self._folder is not None:
            return self._folder
        if self._remove_temporary is not None:
            self._remove_temporary()
        path = tempfile.mkdtemp(prefix="mteb-")
        self._remove_temporary = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return Path(path)

    @cached_property
    def _manifest(self) -> IndexManifest:
        config = self.retriever.config
        return manifest_of(self.retriever.encoder) if is_neural(config) else bm25_manifest(config)

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """Model card of MTEB's results: the system's name, and the fingerprint as revision."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        lists = lists_of(self.mode)
        many = self.retriever.config.max_vectors("passage") > 1
        kinds = {"dense": "late-interaction" if many else "dense", "sparse": "sparse", "bm25": "sparse"}
        unit = ScoringFunction.COSINE if self._manifest.retriever.has_unit_vectors else ScoringFunction.DOT_PRODUCT
        score = ScoringFunction.MAX_SIM if many else unit
        # MTEB requires a value of every field.
        unknown = (
            *("loader", "release_date", "languages", "n_parameters", "memory_usage_mb", "max_tokens", "license"),
            *("open_weights", "public_training_code", "public_training_data", "use_instructions", "training_datasets"),
        )
        return ModelMeta(
            **dict.fromkeys(unknown),
            name=f"diffretriever/{system_name(self._manifest)}.{self.mode}",
            revision=self._manifest.fingerprint,
            embed_dim=self._manifest.hidden_size,
            framework=["PyTorch"],
            similarity_fn_name=score if lists == ("dense",) else ScoringFunction.CUSTOM,
            model_type=[*dict.fromkeys(kinds[name] for name in lists)] if len(lists) == 1 else ["hybrid"],
        )
