"""The training objective: L = L_dense + L_sparse (paper §3.4), and distillation if the recipe has it. Only tensors.

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
"""Temperature of the teacher's scores, chosen for the recipe `minilm`."""
# Above every token id.
_NO_ID = 1 << 62


class Outcome(NamedTuple):
    """The loss and its terms, each a float32 scalar; terms that a recipe or method lacks are zero."""

    loss: Tensor
    dense: Tensor
    sparse: Tensor
    distillation: Tensor
    accuracy: Tensor
    """Share of queries whose positive has the highest dense score of all candidates that count."""

    def detached(self) -> Outcome:
        """Return the values alone."""
        return Outcome(*(value.detach() for value in self))


def objective(queries: TextVectors, passages: TextVectors, recipe: Recipe, answers_QP: Tensor | None = None) -> Outcome:
    """Compute the loss of all queries over all candidates.

    Args:
        queries: Q texts.
        passages: Q · C texts, C = 1 + `hard_negatives`: those of query i from i C on, its positive first.
        recipe: temperature and weights.
        answers_QP: bool, the candidates known to answer a query. They are not among its negatives, in the dense loss or
            the sparse one; distillation counts them. None: all candidates count.
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
    """Return the scores, -inf for candidates that do not count; a query's own positive always counts."""
    if answers_QP is None:
        return scores_QP
    return scores_QP.masked_fill(answers_QP.scatter(1, positives_Q[:, None], value=False), -torch.inf)


def dense_scores(queries: TextVectors, passages: TextVectors) -> Tensor:
    """Return float32 [Q, P]: mean over a query's vectors of the best product with a passage's (paper Eq. 2)."""
    return maxsim(
        queries.vectors_BKH[queries.valid_BK],
        _offsets(queries.valid_BK),
        passages.vectors_BKH[passages.valid_BK],
        _offsets(passages.valid_BK),
    )


def _offsets(valid_BK: Tensor) -> np.ndarray:
    return offsets_of(valid_BK.sum(1).cpu().numpy())


def sparse_scores(queries: TextVectors, passages: TextVectors) -> Tensor:
    """Return [Q, P] of the weights' dtype: inner products of impacts (paper Eq. 3).

    Both sides are laid out over the content ids of these queries, never over the vocabulary.
    """
    asked_U = torch.unique(queries.ids_BT[queries.known_BT])
    return _over(asked_U, queries) @ _over(asked_U, passages).T


def _over(ids_U: Tensor, texts: TextVectors) -> Tensor:
    """Return the impacts [B, U] of `ids_U`, ascending."""
    # One more column takes the ids that no query has.
    ends_U = torch.cat([ids_U, ids_U.new_full((1,), _NO_ID)])
    place_BT = torch.searchsorted(ends_U, texts.ids_BT)
    found_BT = (ends_U[place_BT] == texts.ids_BT) & texts.known_BT
    place_BT = place_BT.masked_fill(~found_BT, len(ids_U))
    room_BU = texts.weights_BT.new_zeros(len(texts.ids_BT), len(ends_U))
    return room_BU.scatter_add(1, place_BT, texts.weights_BT)[:, :-1]


def distilled(student_QP: Tensor, teacher_QP: Tensor) -> Tensor:
    """Return the mean over queries of KL(teacher || student), of the softmax of both logits, a scalar.

    A query without tokens of its own has NaN as its teacher's scores, and does not count.
    """
    known_Q = ~teacher_QP.isnan().any(1)
    if not known_Q.any():
        return student_QP.sum() * 0
    student_QP = log_softmax(student_QP[known_Q], dim=1)
    return kl_div(student_QP, softmax(teacher_QP[known_Q], dim=1), reduction="batchmean")
