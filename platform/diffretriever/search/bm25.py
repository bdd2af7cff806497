"""BM25 by bm25s over an index's texts: Lucene's formula, English possessives, stop words and Porter stemming."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
import Stemmer

from diffretriever.encoders.base import join_title
from diffretriever.files import is_local
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.base import Searcher
from schemas.retriever import Bm25Retriever
from schemas.retriever_parts import Mode

# The 33 English stop words of Lucene's EnglishAnalyzer.
# fmt: off
LUCENE_STOP_WORDS = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
]
# fmt: on
_POSSESSIVE = re.compile(r"['\u2019\uff07]s\b")


class Bm25Searcher(Searcher):
    """Scores every passage; a passage that shares no term with the query is not retrieved."""

    def __init__(self, index: PassageIndex) -> None:
        super().__init__(index)
        config = index.manifest.retriever
        assert isinstance(config, Bm25Retriever), "open_searcher chooses by method"
        self._config = config
        self._ids = [i for batch in index.batches(["id"], 65536) for i in batch.column("id").to_pylist()]
        self._model = self._load() or self._build()

    def _search(
        self, queries: Sequence[str], top_k: int, modes: tuple[Mode, ...], budgets: Sequence[int] | None
    ) -> dict[Mode, Hits]:
        hits: Hits = []
        for words in analyse(queries):
            # One query at a time: the scores of all queries over all passages need not fit in memory.
            best = TopK(1, top_k, only_positive=True)
            best.add(self._scores(words)[None, :], self._ids)
            hits += best.results()
        return dict.fromkeys(modes, hits)

    def _scores(self, words: list[str]) -> np.ndarray:
        known = [word for word in words if word in self._model.vocab_dict]
        return np.asarray(self._model.get_scores(known)) if known else np.zeros(len(self._ids), np.float32)

    def _folder(self) -> Path | None:
        return Path(self.index.uri) / "bm25" / f"version-{self.index.version}" if is_local(self.index.uri) else None

    def _load(self) -> bm25s.BM25 | None:
        folder = self._folder()
        if folder is None or not folder.is_dir():
            return None
        return bm25s.BM25.load(folder, show_progress=False, mmap=True)

    def _build(self) -> bm25s.BM25:
        model = bm25s.BM25(method="lucene", k1=self._config.k1, b=self._config.b)
        if self._ids:
            model.index(analyse(self._texts()), show_progress=False)
        self._save(model)
        return model

    def _texts(self) -> list[str]:
        texts: list[str] = []
        for batch in self.index.batches(["title", "text"], 8192):
            pairs = zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True)
            texts += [join_title(title, text, self._config) for title, text in pairs]
        return texts

    def _save(self, model: bm25s.BM25) -> None:
        folder = self._folder()
        if folder is None or not self._ids:
            return
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            model.save(Path(temporary) / "model", show_progress=False)
            (Path(temporary) / "model").replace(folder)


def analyse(texts: Sequence[str]) -> list[list[str]]:
    """Return the terms of each text as Lucene's EnglishAnalyzer makes them, but for its exotic word breaks."""
    plain = [_POSSESSIVE.sub("", text.lower()) for text in texts]
    return bm25s.tokenize(
        plain,
        token_pattern=r"\w+",  # noqa: S106 (no password)
        stopwords=LUCENE_STOP_WORDS,
        stemmer=Stemmer.Stemmer("porter"),
        return_ids=False,
        show_progress=False,
    )
