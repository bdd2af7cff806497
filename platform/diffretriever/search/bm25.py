"""BM25 by bm25s over an index's texts: Lucene's formula, English possessives, stop words and Porter stemming.

Legend: Q queries, T terms of all queries, W terms of all passages, P postings, V vocabulary, D passages, K kept,
F passages found for all queries together.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import Stemmer

from diffretriever.encoders.preparer import join_title
from diffretriever.full_disk import full_disk
from diffretriever.index.derived import DamagedError, DerivedFolder, folders_in
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.progress import Progress
from diffretriever.representations import offsets_of, within
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.scoring.hits import NO_NUMBER, Hits, TopK
from diffretriever.search.base import FILTERS_KEPT, Searcher
from diffretriever.search.bm25_kernels import best_passages, count_passages, place_counts, weigh
from diffretriever.search.sparse.kernels import decoded, room_for

# Loaded where it is used, for a search that asks for no BM25 need not wait for it.
if TYPE_CHECKING:
    import bm25s

# The 33 English stop words of Lucene's EnglishAnalyzer.
# fmt: off
LUCENE_STOP_WORDS = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
]
# fmt: on
OF_ANY_TEXTS = Bm25Retriever()
"""How the texts of an index that another retriever made are scored: as the preset `bm25` says."""
_LOG = logging.getLogger(__name__)
_FOLDER = "bm25"
_TEXTS_AT_ONCE = 1024
_ROWS_AT_ONCE = 65536
_POSSESSIVE = re.compile(r"['\u2019\uff07]s\b")


class Bm25Searcher(Searcher):
    """Searches an index of texts alone."""

    def __init__(self, index: PassageIndex) -> None:
        super().__init__(index)
        self._texts = Bm25Search(index)
        self._filtered = lru_cache(FILTERS_KEPT)(self._admitting)

    def _search(
        self,
        queries: Sequence[str],
        k: int,
        modes: tuple[Mode, ...],
        budgets: Sequence[int] | None,
        condition: str | None,
    ) -> dict[Mode, Hits]:
        texts = self._texts if condition is None else self._filtered(condition)
        return dict.fromkeys(modes, texts.search(queries, k))

    def _admitting(self, condition: str) -> Bm25Search:
        return self._texts.admitting(IndexPart.filtered(self.index, condition))


class Bm25Search:
    """BM25 of the texts of an index version, whatever retriever made it, or of a part as if there were no others.

    Every passage is scored; one that shares no term with the query is not retrieved. All queries of a call go through
    one compiled loop: some 100 µs a query over 20,000 passages.
    """

    def __init__(self, index: PassageIndex) -> None:
        """Open the BM25 index that is kept beside a version, or build it; that of a part is built and not kept.

        Of a part that a filter makes there is none: see `admitting`.
        """
        assert not (isinstance(index, IndexPart) and index.is_filtered), "words count as in all passages"
        order = index.order
        self._passages = order.passages
        # The model numbers passages in the order of the table.
        if isinstance(index, IndexPart):
            addresses_D = [
                batch.column("_rowaddr").to_numpy() for batch in index.addressed_batches(["id"], _ROWS_AT_ONCE)
            ]
            self._numbers_D = order.numbers(np.concatenate([np.empty(0, np.uint64), *addresses_D]))
            self._model = _built(index)
        else:
            self._numbers_D = order.by_row
            self._model = _loaded(index) or _built_and_kept(index)

    def admitting(self, part: IndexPart) -> Bm25Search:
        """Return what finds the passages of a part alone, with the scores that they have among all."""
        admitted_P = np.zeros(len(self._passages), bool)
        admitted_P[part.order.by_row] = True
        numbers_D = np.where(admitted_P[self._numbers_D], self._numbers_D, np.int32(NO_NUMBER))
        found = copy(self)
        vars(found).update(_numbers_D=numbers_D)
        return found

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return each query's best k passages, best first."""
        if self._model is None:
            return TopK(len(queries), k, self._passages).results()
        known = self._model.vocab_dict
        terms = [[known[word] for word in words if word in known] for words in analyse(queries)]
        offsets_Q = offsets_of([len(each) for each in terms])
        terms_T = np.array([term for each in terms for term in each], np.int64)
        stored = self._model.scores
        matrix = (np.asarray(stored["indptr"]), np.asarray(stored["indices"]), np.asarray(stored["data"]))
        keys_QK = np.empty((len(terms), min(k, len(self._numbers_D))), np.uint64)
        # Of few passages, a block is what there is of them.
        totals_R = np.empty(room_for(len(self._numbers_D)), np.float32)
        best_passages(matrix, (offsets_Q, terms_T), self._numbers_D, (totals_R, totals_R.view(np.int32)), keys_QK)
        keys_QK = np.sort(keys_QK, axis=1)[:, ::-1]
        found_QK = keys_QK > 0
        numbers_F, scores_F = decoded(keys_QK[found_QK])
        return Hits(self._passages, offsets_of(found_QK.sum(axis=1)), numbers_F, scores_F.astype(np.float64))


def keep_bm25(index: PassageIndex) -> None:
    """Build the BM25 index of a version and keep it, unless it is there."""
    if bm25_folder(index).size() is None:
        _built_and_kept(index)


def _loaded(index: PassageIndex) -> bm25s.BM25 | None:
    """Return the model that is kept; None where there is none, no room for it here, or a damaged one, which goes."""
    try:
        return open_bm25(index)
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.warning("%s: the BM25 index is made in memory", error)
    except DamagedError as error:
        _LOG.warning("%s: the BM25 index is made anew", error)
        bm25_folder(index).remove()
    return None


def _built_and_kept(index: PassageIndex) -> bm25s.BM25 | None:
    model = _built(index)
    if model is not None:
        _keep(index, model)
    return model


def _built(index: PassageIndex) -> bm25s.BM25 | None:
    """Return the model of an index's texts; None where no text has a word.

    The library's tokenizer numbers the terms, and compiled loops count and weigh them as the library does, to the bit:
    its own keep some 80 bytes a posting while they count, these 12.
    """
    retriever = index.manifest.retriever
    config = retriever if isinstance(retriever, Bm25Retriever) else OF_ANY_TEXTS
    terms, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    tokenizer = _tokenizer()
    with Progress("BM25 index", len(index), quiet=True) as progress:
        for texts in _texts(index, config):
            found = list(tokenizer.streaming_tokenize(map(_plain, texts), update_vocab=True, allow_empty=False))
            lengths.append(np.array([len(each) for each in found], np.int64))
            terms.append(np.fromiter(chain.from_iterable(found), np.int32))
            progress.update(len(texts))
    if not tokenizer.stem_to_sid:
        return None
    return _weighed(np.concatenate(terms), np.concatenate(lengths), tokenizer.stem_to_sid, config)


def _weighed(
    terms_W: np.ndarray, lengths_D: np.ndarray, vocabulary: dict[str, int], config: Bm25Retriever
) -> bm25s.BM25:
    """Return the model of passages that have these terms, one after the other."""
    import bm25s

    counts_V, last_V = np.zeros(len(vocabulary), np.int64), np.full(len(vocabulary), -1, np.int32)
    offsets_D = offsets_of(lengths_D)
    count_passages(terms_W, offsets_D, counts_V, last_V)
    starts_V = offsets_of(counts_V)
    passages_P, weights_P = np.empty(starts_V[-1], np.int32), np.empty(starts_V[-1], np.float32)
    last_V[:] = -1
    place_counts((terms_W, offsets_D), starts_V[:-1].copy(), last_V, passages_P, weights_P)
    passages = len(lengths_D)
    idf_V = np.array([math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in counts_V.tolist()], np.float32)
    norms_D = config.k1 * ((1 - config.b) + config.b * lengths_D / lengths_D.mean())
    weigh((starts_V, passages_P, weights_P), idf_V, norms_D)
    model = bm25s.BM25(method="lucene", k1=config.k1, b=config.b)
    model.scores = {"data": weights_P, "indices": passages_P, "indptr": starts_V, "num_docs": passages}
    # The library numbers an empty word too, which has no postings.
    model.vocab_dict = {**vocabulary, "": vocabulary.get("", len(vocabulary))}
    model.unique_token_ids_set = set(model.vocab_dict.values())
    model.nonoccurrence_array = None
    return model


def _texts(index: PassageIndex, config: Bm25Retriever) -> Iterator[list[str]]:
    for batch in index.addressed_batches(["title", "text"], _TEXTS_AT_ONCE):
        pairs = zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True)
        yield [join_title(title, text, config) for title, text in pairs]


def _keep(index: PassageIndex, model: bm25s.BM25) -> None:
    try:
        with bm25_folder(index).build() as folder:
            model.save(folder, show_progress=False)
        _remove_older(index)
    except OSError as error:
        warnings.warn(
            f"{index.uri}: the BM25 index cannot be kept there ({error}), so every search builds it anew: let "
            "somebody who may write there search it once",
            stacklevel=2,
        )


def open_bm25(index: PassageIndex) -> bm25s.BM25 | None:
    """Return the model that is kept of an index version; None where none is.

    Raises:
        DamagedError: it is not what was written.
    """
    import bm25s

    held = bm25_folder(index).open()
    if held is None:
        return None
    try:
        model = bm25s.BM25.load(held.folder, show_progress=False, mmap=True)
        fits = _fits(model, len(index))
    except Exception as error:
        # bm25s parses JSON and NumPy's headers, which raise whatever damaged bytes make of them.
        raise DamagedError(f"{held.folder} cannot be read ({type(error).__name__}: {error})") from error
    if not fits:
        raise DamagedError(f"{held.folder} does not fit the index's passages")
    held.keep_for(model)
    return model


def _fits(model: bm25s.BM25, passages: int) -> bool:
    """Return whether arrays are of their types, words lead to postings, and postings to passages, that are there."""
    weights_P, starts_V, passages_P = (np.asarray(model.scores[name]) for name in ("data", "indptr", "indices"))
    if [weights_P.dtype, starts_V.dtype.kind, passages_P.dtype.kind] != [np.float32, "i", "i"]:
        return False
    # The empty word has a number, and no postings.
    words = [number for word, number in model.vocab_dict.items() if word]
    return (
        len(passages_P) == len(weights_P) == starts_V[-1]
        and starts_V[0] == 0
        and bool((np.diff(starts_V) >= 0).all())
        and within(np.array(words), len(starts_V) - 1)
        and within(passages_P, passages)
    )


def bm25_folder(index: PassageIndex) -> DerivedFolder:
    """Return where the BM25 index of a version lies."""
    return DerivedFolder(index.uri, f"{_FOLDER}/version-{index.version}")


def _remove_older(index: PassageIndex) -> None:
    for name in folders_in(index.uri, _FOLDER):
        number = name.removeprefix("version-")
        if number.isdigit() and int(number) < index.version:
            DerivedFolder(index.uri, f"{_FOLDER}/{name}").remove()


def analyse(texts: Sequence[str]) -> list[list[str]]:
    """Return the terms of each text as Lucene's EnglishAnalyzer makes them, but for its exotic word breaks."""
    tokenizer = _tokenizer()
    found = list(tokenizer.streaming_tokenize(map(_plain, texts), update_vocab=True, allow_empty=False))
    terms = list(tokenizer.stem_to_sid)
    return [[terms[number] for number in each] for each in found]


def _tokenizer() -> bm25s.tokenization.Tokenizer:
    """Return what numbers the terms of texts, the same in all that it is given."""
    import bm25s

    return bm25s.tokenization.Tokenizer(splitter=r"\w+", stopwords=LUCENE_STOP_WORDS, stemmer=Stemmer.Stemmer("porter"))


def _plain(text: str) -> str:
    return _POSSESSIVE.sub("", text.lower())
