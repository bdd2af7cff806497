"""The sparse score: impacts of vocabulary entries (Eq. 3 of arXiv 2605.07210).

Legend: B texts of a batch, K slots, T tokens of one text (in `impact_matrix`: impacts of all texts
together), N texts, Q queries, P passages, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse
import torch

Rounding: TypeAlias = Literal["none", "trunc100", "round100"]


def log_relu(logits: torch.Tensor) -> torch.Tensor:
    """Return log(1 + max(0, logit)), any shape: the activation of Eq. 3 of the paper, arXiv 2605.07210."""
    return torch.log1p(torch.relu(logits))


def max_pool(weights_BKT: torch.Tensor, valid_BK: torch.Tensor) -> torch.Tensor:
    """Return each token's largest weight over the valid slots: the pooling of Eq. 3, arXiv 2605.07210.

    Args:
        weights_BKT: floating, at least 0 (what `log_relu` returns).
        valid_BK: bool; slots that a text does not have are False. A text without valid slots gets zeros.

    Returns:
        [B, T] of the dtype of `weights_BKT`.
    """
    return weights_BKT.masked_fill(~valid_BK[:, :, None], 0).amax(dim=1)


def quantise(weights: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return float32 weights of the same shape: as they are (paper), or in hundredths (the authors' code).

    `trunc100` multiplies by 100 and cuts, `round100` multiplies by 100 and rounds half to even. Weights below
    one hundredth may become 0; dropping them is the caller's business.
    """
    weights = np.asarray(weights, dtype=np.float32)
    if rounding == "none":
        return weights
    hundredths = weights * np.float32(100)
    return np.trunc(hundredths) if rounding == "trunc100" else np.rint(hundredths)


def keep_topk(ids_T: np.ndarray, weights_T: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k heaviest impacts of one text, still sorted by id; of equal weights the smaller id stays.

    NaN counts as heaviest, so that it is not cut and overlooked.

    Args:
        ids_T: integers [T], ascending.
        weights_T: floating [T].
        k: at least 1; a text with fewer impacts is returned unchanged.
    """
    if len(ids_T) <= k:
        return ids_T, weights_T
    heaviest = np.argsort(-np.where(np.isnan(weights_T), np.inf, weights_T), kind="stable")[:k]
    kept = np.sort(heaviest)
    return ids_T[kept], weights_T[kept]


def impact_matrix(
    ids_T: np.ndarray, weights_T: np.ndarray, offsets: np.ndarray, vocab_size: int
) -> scipy.sparse.csr_array:
    """Return the impacts of N texts as one float32 matrix [N, V].

    Args:
        ids_T: integers [T], ascending and unique within a text; text i owns offsets[i] to offsets[i + 1].
        weights_T: floating [T].
        offsets: int64 [N + 1].
        vocab_size: V, above every id.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    assert len(ids_T) == len(weights_T) == offsets[-1], "offsets end at the number of impacts"
    if len(ids_T) and not (ids_T.min() >= 0 and ids_T.max() < vocab_size):
        wrong = ids_T.min() if ids_T.min() < 0 else ids_T.max()
        raise ValueError(f"token id {wrong} is outside a vocabulary of {vocab_size}: use the retriever's own tokenizer")
    weights = np.asarray(weights_T, dtype=np.float32)
    return scipy.sparse.csr_array((weights, ids_T, offsets), shape=(len(offsets) - 1, vocab_size))


def sparse_scores(queries_QV: scipy.sparse.csr_array, passages_PV: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return float32 [Q, P]: inner products of impacts, the sparse score of Eq. 3, arXiv 2605.07210.

    An entry is stored only where query and passage share a token.

    Raises:
        ValueError: the two sides have different vocabularies.
    """
    if queries_QV.shape[1] != passages_PV.shape[1]:
        sizes = f"{queries_QV.shape[1]} and {passages_PV.shape[1]}"
        raise ValueError(f"queries and passages have vocabularies of {sizes} tokens: encode both with one retriever")
    return queries_QV @ passages_PV.T.tocsr()


def idf_roots(texts: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return float32 [V]: for each id the square root of ln(1 + (N - n + ½) / (n + ½)), n of N texts holding it.

    With it on both sides a product of impacts is multiplied with the inverse document frequency as BM25 has it. All are
    scaled so that its mean over the texts' ids is 1: scores stay as large as they are on average.

    Args:
        texts: of each text its ids, distinct.
        vocab_size: V.
    """
    counts_V = np.zeros(vocab_size)
    for ids in texts:
        counts_V[ids] += 1
    idf_V = np.log1p((len(texts) - counts_V + 0.5) / (counts_V + 0.5))
    mean = float(counts_V @ idf_V) / max(float(counts_V.sum()), 1.0)
    roots_V: np.ndarray = np.sqrt(idf_V / mean if mean else np.ones(vocab_size)).astype(np.float32)
    return roots_V
