"""The sparse score: impacts of vocabulary entries (Eq. 3 of arXiv 2605.07210).

Legend: T impacts of all texts together, N texts, Q queries, P passages, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse


def impact_matrix(
    ids_T: np.ndarray, weights_T: np.ndarray, offsets: np.ndarray, vocab_size: int
) -> scipy.sparse.csr_array:
    """Return the impacts of N texts as one float32 matrix [N, V].

    Args:
        ids_T: integers [T], ascending and unique within a text; text i has offsets[i] to offsets[i + 1].
        weights_T: floats [T].
        offsets: int64 [N + 1].
        vocab_size: V, above every id.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    assert len(ids_T) == len(weights_T) == offsets[-1], "offsets end at the number of impacts"
    check_ids(ids_T, vocab_size)
    weights = np.asarray(weights_T, dtype=np.float32)
    return scipy.sparse.csr_array((weights, ids_T, offsets), shape=(len(offsets) - 1, vocab_size))


def check_ids(ids_T: np.ndarray, vocab_size: int) -> None:
    """Raise ValueError if an id is outside the vocabulary."""
    if len(ids_T) and not (ids_T.min() >= 0 and ids_T.max() < vocab_size):
        wrong = ids_T.min() if ids_T.min() < 0 else ids_T.max()
        raise ValueError(f"token id {wrong} is outside a vocabulary of {vocab_size}: use the retriever's own tokenizer")


def sparse_scores(queries_QV: scipy.sparse.csr_array, passages_PV: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return float32 [Q, P]: inner products of impacts, the sparse score of Eq. 3, arXiv 2605.07210.

    An entry is stored only where query and passage share a token.
    """
    return queries_QV @ passages_PV.T.tocsr()


def idf_roots(texts: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return float32 [V]: the square root of each id's BM25 idf, ln(1 + (N - n + ½) / (n + ½)).

    `texts` has the distinct ids of each of N texts, n of which contain the id. Multiplied into both sides, the roots
    weight products of impacts by idf. They are scaled to a mean idf of 1 over the texts' ids.
    """
    counts_V = np.zeros(vocab_size)
    for ids in texts:
        counts_V[ids] += 1
    idf_V = np.log1p((len(texts) - counts_V + 0.5) / (counts_V + 0.5))
    mean = float(counts_V @ idf_V) / max(float(counts_V.sum()), 1.0)
    roots_V: np.ndarray = np.sqrt(idf_V / mean if mean else np.ones(vocab_size)).astype(np.float32)
    return roots_V
