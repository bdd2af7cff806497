"""The objective equals slow loops in double precision."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from diffretriever.schemas.training import Recipe
from diffretriever.training.loop import learning_rate
from diffretriever.training.objective import TEACHER_TEMPERATURE, distilled, objective
from diffretriever.training.trainable import TextVectors
from tests.training.trainer_cases import random_texts, with_gradients

QUERIES = random_texts(5, 3, 4, seed=1, dtype=torch.float64)
PASSAGES = random_texts(10, 4, 6, seed=2, dtype=torch.float64)
RECIPE = Recipe(hard_negatives=1, temperature=0.1)


def slow_dense(queries: TextVectors, passages: TextVectors) -> Tensor:
    rows = []
    for q, q_valid in zip(queries.vectors_BKH, queries.valid_BK, strict=True):
        row = []
        for p, p_valid in zip(passages.vectors_BKH, passages.valid_BK, strict=True):
            own_J, own_I = p[: int(p_valid.sum())], q[: int(q_valid.sum())]
            best = [torch.stack([q_i @ p_j for p_j in own_J]).max() for q_i in own_I]
            row.append(torch.stack(best).mean())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def slow_sparse(queries: TextVectors, passages: TextVectors, vocabulary: int = 12) -> Tensor:
    def full(texts: TextVectors, row: int) -> Tensor:
        vector_V = torch.zeros(vocabulary, dtype=torch.float64)
        for token, weight, known in zip(texts.ids_BT[row], texts.weights_BT[row], texts.known_BT[row], strict=True):
            if known:
                vector_V = vector_V + weight * torch.eye(vocabulary, dtype=torch.float64)[int(token)]
        return vector_V

    return torch.stack(
        [
            torch.stack([full(queries, i) @ full(passages, j) for j in range(len(passages.ids_BT))])
            for i in range(len(queries.ids_BT))
        ]
    )


def slow_cross_entropy(scores_QP: Tensor, each: int, answers_QP: Tensor | None = None) -> Tensor:
    """Over the counted candidates, one at a time."""
    losses = []
    for i, scores in enumerate(scores_QP):
        answers = () if answers_QP is None else answers_QP[i].nonzero().flatten().tolist()
        counted = [score for p, score in enumerate(scores) if p == i * each or p not in answers]
        losses.append(torch.stack(counted).logsumexp(0) - scores[i * each])
    return torch.stack(losses).mean()


# Of every query its own positive, of some a copy of it or another answer; of the last query all there is.
ANSWERS = torch.tensor(
    [
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 0, 0, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
).bool()


@pytest.mark.parametrize("answers_QP", [None, ANSWERS], ids=["all count", "answers do not count"])
def test_objective_and_its_gradients(answers_QP: Tensor | None) -> None:
    ours = with_gradients(QUERIES), with_gradients(PASSAGES)
    theirs = with_gradients(QUERIES, torch.float64), with_gradients(PASSAGES, torch.float64)
    actual = objective(*ours, RECIPE, answers_QP)
    dense_QP = slow_dense(*theirs)
    dense = slow_cross_entropy(dense_QP / RECIPE.temperature, 2, answers_QP)
    expected = dense + slow_cross_entropy(slow_sparse(*theirs), 2, answers_QP)
    torch.testing.assert_close(actual.loss, expected.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(actual.dense, dense.float(), atol=1e-5, rtol=1e-5)
    better_QP = dense_QP > dense_QP[torch.arange(5), 2 * torch.arange(5)][:, None]
    if answers_QP is not None:
        better_QP &= ~answers_QP
    assert float(actual.accuracy) == pytest.approx(float((~better_QP.any(1)).float().mean()))
    actual.loss.backward()
    expected.backward()
    for mine, reference in zip(ours, theirs, strict=True):
        for tensor, other in ((mine.vectors_BKH, reference.vectors_BKH), (mine.weights_BT, reference.weights_BT)):
            assert tensor.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(tensor.grad, other.grad.float(), atol=1e-5, rtol=1e-4)
            assert tensor.grad.abs().max() > 0


def test_distillation_by_hand() -> None:
    student_QP = torch.tensor([[0.0, math.log(3)], [1.0, 1.0]])
    teacher_QP = torch.tensor([[math.log(3), 0.0], [torch.nan, torch.nan]])
    # Distributions (1/4, 3/4) and (3/4, 1/4); the query without a teacher does not count.
    assert float(distilled(student_QP, teacher_QP)) == pytest.approx(0.75 * math.log(3) - 0.25 * math.log(3))
    assert float(distilled(student_QP, torch.full((2, 2), torch.nan))) == 0
    student_QP = student_QP.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: distilled(scores, teacher_QP.double()), student_QP)


def test_the_teacher_is_the_texts_own_tokens() -> None:
    recipe = RECIPE.model_copy(update={"distillation_weight": 0.5})
    actual = objective(with_gradients(QUERIES), with_gradients(PASSAGES), recipe)
    ours_QP = (slow_dense(QUERIES, PASSAGES) / RECIPE.temperature).log_softmax(1)
    theirs_QP = (slow_dense(QUERIES.by_tokens(), PASSAGES.by_tokens()) / TEACHER_TEMPERATURE).log_softmax(1)
    expected = (theirs_QP.exp() * (theirs_QP - ours_QP)).sum(1).mean()
    torch.testing.assert_close(actual.distillation, expected.float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(actual.loss, actual.dense + actual.sparse + 0.5 * actual.distillation)


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [learning_rate(1e-4, step, 200) for step in range(200)]
    assert rates[11] == max(rates) == 1e-4  # 6 % of 200 steps
    assert rates[0] == pytest.approx(1e-4 / 12)
    assert all(a < b for a, b in pairwise(rates[:12]))
    assert all(a >= b for a, b in pairwise(rates[12:]))
    assert rates[12 + 94] == pytest.approx(0.5e-4)
    assert 0 < rates[-1] < 1e-7
    assert learning_rate(1e-4, 0, 1) == 1e-4
