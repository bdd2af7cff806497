"""The training objective: L = L_dense + L_sparse (paper §3.4), plus the recipe's distillation.

Legend: Q queries, P candidates, B texts, K vectors of a text, H hidden size, T content ids of a text, U distinct
content ids of all queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from diffretriever.schemas.training import Recipe
from diffretriever.training.trainable import TextVectors
from diffretriever.vectors.maxsim import maxsim
from diffretriever.vectors.representations import offsets_of

TEACHER_TEMPERATURE = 0.018
"""Temperature of the teacher's scores, tuned for the recipe `minilm`."""
# Above every token id.
_NO_ID = 1 << 62


class Outcome(NamedTuple):
    """The loss and its terms, float32 scalars; unused terms are zero."""

    loss: Tensor
    dense: Tensor
    sparse: Tensor
    distillation: Tensor
    accuracy: Tensor
    """Share of queries whose positive has the highest dense score among the counted candidates."""


def objective(queries: TextVectors, passages: TextVectors, recipe: Recipe, answers_QP: Tensor | None = None) -> Outcome:
    """Compute the loss of all queries over all candidates.

    Args:
        queries: Q texts.
        passages: Q · C texts, C = 1 + `hard_negatives` for each query, its positive first.
        recipe: temperature and weights.
        answers_QP: bool, the candidates known to answer a query, which are not its negatives in the dense and sparse
            losses. None: all other candidates are negatives.
    """
    positives_Q = torch.arange(len(queries.ids_BT), device=queries.ids_BT.device) * (1 + recipe.hard_negatives)
    scores_QP = dense_scores(queries, passages)
    counted_QP = _counted(scores_QP, answers_QP, positives_Q)
    dense = cross_entropy(counted_QP / recipe.temperature, positives_Q)
    sparse = distillation = torch.zeros_like(dense)
    if queries.ids_BT.shape[1]:
        sparse = cross_entropy(_counted(sparse_scores(queries, passages), answers_QP, positives_Q), positives_Q)
    if recipe.distillation_weight:
        teacher_QP = dense_scores(queries.by_tokens(), passages.by_tokens())
        distillation = distilled(scores_QP / recipe.temperature, teacher_QP / TEACHER_TEMPERATURE)
    loss = dense + sparse + recipe.distillation_weight * distillation
    accuracy = (counted_QP.argmax(1) == positives_Q).float().mean()
    return Outcome(loss, dense, sparse, distillation, accuracy)


def _counted(scores_QP: Tensor, answers_QP: Tensor | None, positives_Q: Tensor) -> Tensor:
    """Return the scores with -inf for known answers other than the query's positive."""
    if answers_QP is None:
        return scores_QP
    return scores_QP.masked_fill(answers_QP.scatter(1, positives_Q[:, None], value=False), -torch.inf)


def dense_scores(queries: TextVectors, passages: TextVectors) -> Tensor:
    """Return the MaxSim scores, float32 [Q, P] (paper Eq. 2)."""
    return maxsim(
        queries.vectors_BKH[queries.valid_BK],
        _offsets(queries.valid_BK),
        passages.vectors_BKH[passages.valid_BK],
        _offsets(passages.valid_BK),
    )


def _offsets(valid_BK: Tensor) -> np.ndarray:
    return offsets_of(valid_BK.sum(1).cpu().numpy())


def sparse_scores(queries: TextVectors, passages: TextVectors) -> Tensor:
    """Return the inner products of impacts, [Q, P] in the weights' dtype (paper Eq. 3)."""
    # Columns for the queries' ids only, not for the whole vocabulary.
    query_ids_U = torch.unique(queries.ids_BT[queries.known_BT])
    return _over(query_ids_U, queries) @ _over(query_ids_U, passages).T


def _over(ids_U: Tensor, texts: TextVectors) -> Tensor:
    """Return the impacts of `ids_U` (ascending), [B, U]."""
    # The last column collects all other ids.
    padded_U = torch.cat([ids_U, ids_U.new_full((1,), _NO_ID)])
    column_BT = torch.searchsorted(padded_U, texts.ids_BT)
    is_known_BT = (padded_U[column_BT] == texts.ids_BT) & texts.known_BT
    column_BT = column_BT.masked_fill(~is_known_BT, len(ids_U))
    zeros_BU = texts.weights_BT.new_zeros(len(texts.ids_BT), len(padded_U))
    return zeros_BU.scatter_add(1, column_BT, texts.weights_BT)[:, :-1]


def distilled(student_QP: Tensor, teacher_QP: Tensor) -> Tensor:
    """Return the mean KL(teacher || student) of the softmax of both logits over the queries, a scalar.

    Queries whose teacher scores are NaN, because they have no tokens, do not count.
    """
    known_Q = ~teacher_QP.isnan().any(1)
    if not known_Q.any():
        return student_QP.sum() * 0
    student_QP = log_softmax(student_QP[known_Q], dim=1)
    return kl_div(student_QP, softmax(teacher_QP[known_Q], dim=1), reduction="batchmean")
