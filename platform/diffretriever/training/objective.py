"""The training objective: L = L_dense + L_sparse, and distillation where asked for (reference §5.3).

Legend: Q queries, P candidates, C passages of a query's own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diffretriever.training.losses import (
    contrastive,
    dense_scores,
    distilled_kl,
    distilled_mse,
    misalignment,
    own_passages,
    sparse_scores,
    without,
)
from diffretriever.training.text_vectors import Taught, TextVectors
from schemas.training import Recipe


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
        return scores_QP if answers_QP is None else without(scores_QP, answers_QP, positives_Q)

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
