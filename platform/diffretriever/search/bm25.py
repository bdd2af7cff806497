"""BM25 over the texts of an index: Lucene's formula, English possessives, stop words and Porter stemming.

Term weights do not depend on the query, so that BM25 is a sparse dot product, stored and searched like impacts.

Legend: Q queries, T terms of all queries, I terms of a block of passages, V vocabulary, D passages.
"""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import Stemmer

from diffretriever.core.full_disk import full_disk
from diffretriever.core.progress import Progress
from diffretriever.encoders.preparer import join_title
from diffretriever.encoders.words import split_words, stemmer_of, stop_words, warn_of_script
from diffretriever.index.derived import DamagedError, DerivedFolder, folders_in, unless_damaged
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.language import ENGLISH
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.search.sparse.kernels import BLOCK_ROWS
from diffretriever.search.sparse.segment import Impacts, PostingsSegment, search
from diffretriever.vectors.hits import NO_NUMBER, Hits
from diffretriever.vectors.representations import offsets_of

# Imported when texts are tokenized: searches without BM25 do not load it.
if TYPE_CHECKING:
    import bm25s

# The 33 English stop words of Lucene's EnglishAnalyzer.
# fmt: off
LUCENE_STOP_WORDS = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
]
# fmt: on
_LOG = logging.getLogger(__name__)
_FOLDER = "bm25"
_VOCABULARY = "vocabulary.json"
_TEXTS_AT_ONCE = 1024
_SEGMENT_BLOCKS = 4
"""Posting blocks per segment. A segment stores one number per term and block, and most terms are rare."""
_WORD = re.compile(r"\w+")
_POSSESSIVE = re.compile(r"['\u2019\uff07]s\b")


@dataclass(frozen=True)
class Bm25Weights:
    """BM25 weights of all terms in all passages.

    Attributes:
        terms: term → term number.
        segments: postings, passages in table order.
    """

    terms: dict[str, int]
    segments: list[PostingsSegment]

    @classmethod
    def of_texts(cls, index: PassageIndex) -> Bm25Weights:
        """Compute the weights from all texts; needs 8 bytes of memory per distinct term of each passage."""
        retriever = index.manifest.retriever
        config = retriever if isinstance(retriever, Bm25Retriever) else Bm25Retriever(language=retriever.language)
        tokenizer, blocks, lengths = _tokenizer(config.language), [], [np.empty(0, np.int64)]
        tokenized = _tokenized(tokenizer, _texts(index, config))
        while batches := list(islice(tokenized, BLOCK_ROWS // _TEXTS_AT_ONCE)):
            terms_I = np.concatenate([terms for terms, _ in batches])
            lengths.append(np.concatenate([counts for _, counts in batches]))
            # With offsets of 32 bits, SciPy keeps the terms in 32 bits.
            offsets, vocab_size = offsets_of(lengths[-1]).astype(np.int32), len(tokenizer.stem_to_sid)
            shape = len(lengths[-1]), vocab_size
            occurrences = scipy.sparse.csr_array((np.ones(len(terms_I), np.float32), terms_I, offsets), shape)
            # A product adds up the occurrences of a term in linear time; `sum_duplicates` would sort them.
            blocks.append(occurrences @ scipy.sparse.eye_array(vocab_size, dtype=np.float32, format="csr"))
        return cls(
            tokenizer.stem_to_sid, _segments(blocks, np.concatenate(lengths), len(tokenizer.stem_to_sid), config)
        )

    def save(self, folder: Path) -> None:
        """Write the vocabulary and the segments."""
        (folder / _VOCABULARY).write_text(json.dumps(list(self.terms)), "utf-8")
        for number, segment in enumerate(self.segments):
            segment.save(folder, f"{number:06d}-")

    @classmethod
    def open(cls, folder: Path) -> Bm25Weights:
        """Read the vocabulary and map the segments.

        Raises:
            ValueError: the files are damaged.
            OSError: a file is missing.
        """
        vocabulary = json.loads((folder / _VOCABULARY).read_text("utf-8"))
        terms = {term: number for number, term in enumerate(vocabulary)}
        prefixes = [file.name.removesuffix("shape.bin") for file in sorted(folder.glob("*-shape.bin"))]
        segments = [PostingsSegment.open(folder, prefix) for prefix in prefixes]
        if any(segment.vocab_size != len(terms) for segment in segments):
            raise ValueError("the segments are of another vocabulary")
        return cls(terms, segments)


class Bm25Search:
    """BM25 search of an index version, with any retriever.

    Passages that share no term with the query are not retrieved.
    """

    def __init__(self, index: PassageIndex) -> None:
        """Open the BM25 index in the folder of a version, or build it."""
        assert not isinstance(index, IndexPart), "words are counted in all passages"
        self._passages = index.order.passages
        self._language = index.manifest.retriever.language
        self._weights = _open_or_none(index) or _build(index)
        ends = np.cumsum([segment.passages for segment in self._weights.segments], dtype=np.int64)
        # Segments number passages in the order of the table.
        self._numbers = np.split(index.order.by_row, ends)[:-1]

    def admitting(self, part: IndexPart) -> Bm25Search:
        """Return the search of a part's passages, scored with the statistics of the whole index."""
        admitted_P = np.zeros(len(self._passages), bool)
        admitted_P[part.order.by_row] = True
        numbers = [np.where(admitted_P[rows], rows, np.int32(NO_NUMBER)) for rows in self._numbers]
        search_of_part = copy(self)
        vars(search_of_part).update(_numbers=numbers)
        return search_of_part

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return each query's best k passages, best first."""
        numbers = self._weights.terms
        analysed = analyse(queries, self._language)
        terms = [[numbers[word] for word in words if word in numbers] for words in analysed]
        for query, known in zip(queries, terms, strict=True):
            if not known:
                warn_of_script(query, self._language)
        ids_T = np.array(list(chain.from_iterable(terms)), np.int64)
        weighted = ids_T, np.ones(len(ids_T), np.float32), np.cumsum([0, *map(len, terms)])
        hits = search(self._weights.segments, self._numbers, weighted, k)
        return Hits(
            self._passages,
            np.cumsum([0, *[len(query.numbers) for query in hits]], dtype=np.int64),
            np.concatenate([np.empty(0, np.int32), *[query.numbers for query in hits]]),
            np.concatenate([np.empty(0), *[query.scores for query in hits]]),
        )


def store_bm25(index: PassageIndex) -> None:
    """Build and store the BM25 index of a version, unless it is stored already."""
    if unless_damaged(bm25_folder(index).size) is None:
        _build(index)


def open_bm25(index: PassageIndex) -> Bm25Weights | None:
    """Open the stored BM25 index of a version; None if there is none.

    Raises:
        DamagedError: its files are damaged.
    """
    stored = bm25_folder(index).open()
    if stored is None:
        return None
    try:
        weights = Bm25Weights.open(stored.folder)
    except (OSError, ValueError) as error:
        raise DamagedError(f"{stored.folder} cannot be read ({error})") from error
    if sum(segment.passages for segment in weights.segments) != len(index):
        raise DamagedError(f"{stored.folder} does not fit the index's passages")
    stored.keep_for(weights)
    return weights


def bm25_folder(index: PassageIndex) -> DerivedFolder:
    """Return the folder of a version's BM25 index; it may not exist."""
    return DerivedFolder(index.uri, f"{_FOLDER}/version-{index.version}")


def analyse(texts: Sequence[str], language: str = ENGLISH) -> list[list[str]]:
    """Return the terms of each text; in English like Lucene's EnglishAnalyzer, except for its rarer word boundaries."""
    tokenizer = _tokenizer(language)
    tokenized = list(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
    terms = list(tokenizer.stem_to_sid)
    return [[terms[number] for number in numbers] for numbers in tokenized]


def _open_or_none(index: PassageIndex) -> Bm25Weights | None:
    try:
        return open_bm25(index)
    except OSError as error:
        if full_disk(error) is None:
            raise
        _LOG.warning("%s: building the BM25 index in memory", error)
    except DamagedError as error:
        _LOG.warning("%s: rebuilding the BM25 index", error)
        bm25_folder(index).remove()
    return None


def _build(index: PassageIndex) -> Bm25Weights:
    weights = Bm25Weights.of_texts(index)
    try:
        with bm25_folder(index).build() as folder:
            weights.save(folder)
        for name in folders_in(index.uri, _FOLDER):
            number = name.removeprefix("version-")
            if number.isdigit() and int(number) < index.version:
                DerivedFolder(index.uri, f"{_FOLDER}/{name}").remove()
    except OSError as error:
        warnings.warn(
            f"{index.uri}: the BM25 index cannot be stored there ({error}), so every process builds it again: search "
            "once with BM25 as a user who may write there",
            stacklevel=2,
        )
    return weights


def _segments(
    blocks: Sequence[scipy.sparse.csr_array], lengths_D: np.ndarray, vocab_size: int, config: Bm25Retriever
) -> list[PostingsSegment]:
    counts = [np.bincount(block.indices, minlength=vocab_size) for block in blocks]
    passages = len(lengths_D)
    counts_V = sum(counts, np.zeros(vocab_size, np.int64))
    idf_V = np.array([math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in counts_V.tolist()], np.float32)
    mean_length = max(lengths_D.sum(), 1) / max(passages, 1)
    norms_D = config.k1 * ((1 - config.b) + config.b * lengths_D / mean_length)
    segments = []
    for first in range(0, len(blocks), _SEGMENT_BLOCKS):
        group = slice(first, first + _SEGMENT_BLOCKS)
        weighted = _weighted(blocks[group], idf_V, norms_D[first * BLOCK_ROWS :])
        group_passages = sum(block.shape[0] for block in blocks[group])
        group_counts_V = sum(counts[group], np.zeros(vocab_size, np.int64))
        segments.append(PostingsSegment.of_blocks(weighted, group_counts_V, group_passages))
    return segments


def _weighted(blocks: Iterable[scipy.sparse.csr_array], idf_V: np.ndarray, norms_D: np.ndarray) -> Iterator[Impacts]:
    for number, block in enumerate(blocks):
        norms_I = np.repeat(norms_D[number * BLOCK_ROWS :][: block.shape[0]], np.diff(block.indptr))
        # In place: a block has millions of terms.
        norms_I += block.data
        weights_I = np.divide(block.data, norms_I, out=norms_I)
        weights_I *= idf_V[block.indices]
        yield block.indices, weights_I.astype(np.float32), block.indptr.astype(np.int64)


def _tokenized(
    tokenizer: bm25s.tokenization.Tokenizer, texts: Iterable[str]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the terms of `_TEXTS_AT_ONCE` texts at a time, int32, and the number of terms of each text."""
    tokens = tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False)
    while batch := list(islice(tokens, _TEXTS_AT_ONCE)):
        yield np.fromiter(chain.from_iterable(batch), np.int32), np.array([len(text) for text in batch])


def _texts(index: PassageIndex, config: Bm25Retriever) -> Iterator[str]:
    with Progress("BM25 index", len(index), quiet=True) as progress:
        for batch in index.addressed_batches(["title", "text"], _TEXTS_AT_ONCE):
            for title, text in zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True):
                yield join_title(title, text, config)
            progress.update(len(batch))


def _tokenizer(language: str) -> bm25s.tokenization.Tokenizer:
    import bm25s

    if language != ENGLISH:
        words, stopped = partial(split_words, language=language), list(stop_words(language))
        return bm25s.tokenization.Tokenizer(splitter=words, stopwords=stopped, stemmer=stemmer_of(language))
    porter = Stemmer.Stemmer("porter")
    return bm25s.tokenization.Tokenizer(splitter=_english_words, stopwords=LUCENE_STOP_WORDS, stemmer=porter)


def _english_words(text: str) -> list[str]:
    return _WORD.findall(_POSSESSIVE.sub("", text))
