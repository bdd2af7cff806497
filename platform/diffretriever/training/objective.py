"""The training objective: L = L_dense + L_sparse, and distillation where asked for (paper §3.4). Only tensors.

Legend: Q queries, P candidates, C passages of a query's own, B texts, K vectors of a text, H hidden size, T content ids
of a text, U distinct content ids of all queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, mse_loss, softmax

from diffretriever.representations import offsets_of
from diffretriever.schemas.training import Recipe
from diffretriever.scoring.maxsim import maxsim
from diffretriever.training.trainable import Taught, TextVectors

# Above every token id.
_NO_ID = 1 << 62


class Outcome(NamedTuple):
    """The loss and what it is made of, each a float32 scalar; parts that a recipe or method lacks are zero."""

    loss: Tensor
    dense: Tensor
    sparse: Tensor
    distillation: Tensor
    accuracy: Tensor
    """Share of queries whose positive has the highest dense score of all candidates that count."""

    def detached(self) -> Outcome:
        """Return the values alone."""
        return Outcome(*(value.detach() for value in self))


def objective(
    queries: TextVectors,
    passages: TextVectors,
    teacher_QC: Tensor | None,
    passages_each: int,
    recipe: Recipe,
    answers_QP: Tensor | None = None,
    taught: Taught | None = None,
) -> Outcome:
    """Compute the loss of all queries over all candidates.

    Args:
        queries: Q texts.
        passages: Q · C texts, those of query i from i C on, its positive first.
        teacher_QC: the teacher's scores, NaN for a query without them; None without distillation.
        passages_each: C.
        recipe: temperatures and weights.
        answers_QP: bool, the candidates known to answer a query: none of them is its negative, in the dense loss or the
            sparse one. None: all count. Distillation takes no notice of them.
        taught: the same texts as another retriever represents them, which is the teacher then, of all candidates.
    """
    positives_Q = torch.arange(len(queries.ids_BT), device=queries.ids_BT.device) * passages_each

    def counted(scores_QP: Tensor) -> Tensor:
        return scores_QP if answers_QP is None else excluding(scores_QP, answers_QP, positives_Q)

    scores_QP = dense_scores(queries, passages)
    dense = contrastive(counted(scores_QP) / recipe.temperature, positives_Q)
    sparse = distillation = torch.zeros_like(dense)
    if recipe.sparse_weight and queries.ids_BT.shape[1]:
        sparse = contrastive(counted(sparse_scores(queries, passages)), positives_Q)
    if taught is not None and recipe.distillation == "align":
        distillation = misalignment(queries, taught.queries) + misalignment(passages, taught.passages)
    elif taught is not None:
        distillation = _distillation(scores_QP, dense_scores(*taught), recipe)
    elif teacher_QC is not None:
        distillation = _distillation(own_passages(scores_QP, passages_each), teacher_QC, recipe)
    loss = dense + recipe.sparse_weight * sparse + recipe.distillation_weight * distillation
    accuracy = (counted(scores_QP).argmax(1) == positives_Q).float().mean()
    return Outcome(loss, dense, sparse, distillation, accuracy)


def _distillation(student_QC: Tensor, teacher_QC: Tensor, recipe: Recipe) -> Tensor:
    if recipe.distillation == "kl":
        return distilled_kl(student_QC / recipe.temperature, teacher_QC / recipe.teacher_temperature)
    return distilled_mse(student_QC, teacher_QC)


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


def excluding(scores_QP: Tensor, excluded_QP: Tensor, positives_Q: Tensor) -> Tensor:
    """Return [Q, P]: the scores, -inf for candidates that do not count; a query's positive always counts.

    Args:
        scores_QP: of all candidates.
        excluded_QP: bool; what it says of a query's positive does not matter.
        positives_Q: int64, the column of each query's positive.
    """
    return scores_QP.masked_fill(excluded_QP.scatter(1, positives_Q[:, None], value=False), -torch.inf)


def contrastive(scores_QP: Tensor, positives_Q: Tensor) -> Tensor:
    """Return the mean over queries of the cross-entropy of its positive among all P candidates, a scalar.

    Args:
        scores_QP: divided by the temperature already; -inf for a candidate that does not count.
        positives_Q: int64, the column of each query's positive.
    """
    return cross_entropy(scores_QP, positives_Q)


def distilled_kl(student_QC: Tensor, teacher_QC: Tensor) -> Tensor:
    """Return the mean over queries of KL(teacher || student), of the softmax of both, a scalar.

    Args:
        student_QC: logits, that is, divided by the temperature already.
        teacher_QC: likewise. A query whose teacher's scores are NaN does not count; with no other the result is 0.
    """
    known_Q = ~teacher_QC.isnan().any(1)
    if not known_Q.any():
        return student_QC.sum() * 0
    student_QC = log_softmax(student_QC[known_Q], dim=1)
    return kl_div(student_QC, softmax(teacher_QC[known_Q], dim=1), reduction="batchmean")


def distilled_mse(student_QC: Tensor, teacher_QC: Tensor) -> Tensor:
    """Return the mean squared difference of scores, a scalar; NaN as in `distilled_kl`."""
    known_Q = ~teacher_QC.isnan().any(1)
    if not known_Q.any():
        return student_QC.sum() * 0
    return mse_loss(student_QC[known_Q], teacher_QC[known_Q])


def misalignment(texts: TextVectors, taught: TextVectors) -> Tensor:
    """Return the mean over texts of 1 - cosine of the mean of its vectors and the mean of a teacher's, a scalar."""
    return (1 - cosine_similarity(texts.vectors_BKH.sum(1), taught.vectors_BKH.sum(1))).mean()


def own_passages(scores_QP: Tensor, passages_each: int) -> Tensor:
    """Return [Q, C]: each query's scores of the C passages that it brought, where query i brought those from i C on."""
    rows_Q1 = torch.arange(len(scores_QP), device=scores_QP.device)[:, None]
    return scores_QP.gather(1, rows_Q1 * passages_each + torch.arange(passages_each, device=scores_QP.device))
