"""BM25 by bm25s over an index's texts: Lucene's formula, English possessives, stop words and Porter stemming.

Legend: Q queries, T terms of all queries, D passages, K kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
import Stemmer

from diffretriever.encoders.preparer import join_title
from diffretriever.files import is_local
from diffretriever.index.table import PassageIndex
from diffretriever.kernels.term_scores import best_passages
from diffretriever.scoring.topk import Hit, Hits
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
    """Scores every passage; a passage that shares no term with the query is not retrieved.

    All queries of a call go through one compiled loop: some 100 µs a query over 20,000 passages.
    """

    def __init__(self, index: PassageIndex) -> None:
        super().__init__(index)
        config = index.manifest.retriever
        assert isinstance(config, Bm25Retriever), "open_searcher chooses by method"
        self._config = config
        self._ids = [i for batch in index.batches(["id"], 65536) for i in batch.column("id").to_pylist()]
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        self._places_D = np.empty(len(order), np.int64)
        self._places_D[order] = np.arange(len(order))
        self._model = self._load() or self._build()

    def _search(
        self, queries: Sequence[str], top_k: int, modes: tuple[Mode, ...], budgets: Sequence[int] | None
    ) -> dict[Mode, Hits]:
        if self._model is None:
            return {mode: [[] for _ in queries] for mode in modes}
        known = self._model.vocab_dict
        terms = [[known[word] for word in words if word in known] for words in analyse(queries)]
        offsets_Q = np.cumsum([0, *map(len, terms)])
        terms_T = np.array([term for each in terms for term in each], np.int64)
        stored = self._model.scores
        matrix = (np.asarray(stored["indptr"]), np.asarray(stored["indices"]), np.asarray(stored["data"]))
        kept_QK = np.empty((len(terms), min(top_k, len(self._ids))), np.int64)
        scores_QK = np.empty(kept_QK.shape, np.float32)
        best_passages(matrix, (offsets_Q, terms_T), self._places_D, kept_QK, scores_QK)
        hits = [self._hits(*pair) for pair in zip(kept_QK, scores_QK, strict=True)]
        return dict.fromkeys(modes, hits)

    def _hits(self, kept_K: np.ndarray, scores_K: np.ndarray) -> list[Hit]:
        n = int(np.count_nonzero(kept_K >= 0))
        return [(self._ids[i], score) for i, score in zip(kept_K[:n].tolist(), scores_K[:n].tolist(), strict=True)]

    def _folder(self) -> Path | None:
        return Path(self.index.uri) / "bm25" / f"version-{self.index.version}" if is_local(self.index.uri) else None

    def _load(self) -> bm25s.BM25 | None:
        folder = self._folder()
        if folder is None or not folder.is_dir():
            return None
        return bm25s.BM25.load(folder, show_progress=False, mmap=True)

    def _build(self) -> bm25s.BM25 | None:
        """Return the model of the index's texts, kept on disk; None where no text has a word."""
        words = analyse(self._texts())
        if not any(words):
            return None
        model = bm25s.BM25(method="lucene", k1=self._config.k1, b=self._config.b)
        model.index(words, show_progress=False)
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
        if folder is None:
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
