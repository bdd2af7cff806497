"""Gradient caching and negatives of other workers, against one process that holds everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.batches import Part
from diffretriever.training.data.seeds import seed_torch
from diffretriever.training.gather import Workers
from diffretriever.training.objective import objective
from diffretriever.training.session import Session
from diffretriever.training.trainable import join
from tests.training.trainer_cases import (
    WORKERS,
    FolderOf,
    answers_to,
    config_of,
    on_workers,
    own_texts,
    quick_recipe,
    session_of,
)

Gradients = dict[str, Tensor]


def start(session: Session) -> None:
    """B that is not zero, or A would have no gradient."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in trainable_parameters(session.encoder.backbone).items():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)


def slow_answers(parts: list[Part], each: int) -> Tensor:
    """Which candidates have a text that is known to answer a query."""
    rows = [int(query_id[1:]) for part in parts for query_id in part.query_ids]
    candidates = [text for row in rows for text in own_texts(row, each)]
    return torch.tensor([[text in answers_to(row) for text in candidates] for row in rows])


def gradients_of(session: Session, step: int = 0) -> Gradients:
    """What the loop adds up on this worker and averages over all."""
    start(session)
    trainer = session.trainer
    trainer.compression.refit(step)
    session.encoder.backbone.model.train()
    trainer._add_gradients(step, trainer.batches.parts(step))
    trainer.engine._average()  # type: ignore[attr-defined]  # the plain engine
    return {n: p.grad.clone() for n, p in trainable_parameters(session.encoder.backbone).items() if p.grad is not None}


def slow_gradients(session: Session, pools: list[list[int]], step: int = 0) -> Gradients:
    """Of the mean over pools of the loss of all texts of a pool, encoded at once by one process.

    Parts have dropout of their own: they are encoded one by one, but all with gradient.
    """
    start(session)
    trainer = session.trainer
    trainer.compression.refit(step)
    session.encoder.backbone.model.train()
    parts = trainer.batches.parts(step)
    for pool in pools:
        queries, passages = [], []
        for number in pool:
            seed_torch("dropout", trainer.recipe.seed, step, number)
            queries.append(trainer.encoder.encode(parts[number].queries))
            passages.append(trainer.encoder.encode(parts[number].passages))
        teachers = [part.teacher_BC for part in parts if part.number in pool and part.teacher_BC is not None]
        teacher_QC = torch.cat(teachers) if teachers else None
        each = 1 + trainer.recipe.hard_negatives
        answers_QP = slow_answers([parts[number] for number in pool], each)
        if trainer.recipe.equal_passages == "keep":
            answers_QP[:] = False
        candidates = trainer.compression.applied(join(passages))
        loss = objective(join(queries), candidates, teacher_QC, each, trainer.recipe, answers_QP).loss
        (loss / len(pools)).backward()
    return {n: p.grad.clone() for n, p in trainable_parameters(session.encoder.backbone).items() if p.grad is not None}


def assert_equal(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * max(1.0, largest), rtol=1e-5, msg=name)


POOLS = {
    "local": [[0], [1], [2], [3]],
    "gathered": [[0, 1], [2, 3]],
    "cached": [[0, 1, 2, 3]],
}
"""Parts that share their candidates, with two workers."""
CASES: list[tuple[str, dict[str, Any]]] = [
    ("masked-dream", {"lora_dropout": 0.3}),
    ("masked-dream", {"distillation": "kl", "teacher_temperature": 0.2, "query_budgets": (1, 2)}),
    ("generated-llama3", {"lora_dropout": 0.0}),
    ("pooled-bert", {"lora_dropout": 0.3, "gradient_checkpointing": True, "equal_passages": "keep"}),
    ("masked-bert", {"lora_dropout": 0.3, "compression": "product2"}),
    ("masked-llada-2step", {"lora_dropout": 0.3, "gradient_checkpointing": True}),
]


@pytest.mark.parametrize(("case", "changes"), CASES)
def test_cached_on_one_worker(case: str, changes: dict[str, Any], folder_of: FolderOf) -> None:
    retriever, recipe = config_of(case, folder_of), quick_recipe(negatives="cached", **changes)
    expected = slow_gradients(session_of(retriever, recipe), POOLS["cached"])
    assert_equal(gradients_of(session_of(retriever, recipe)), expected)


def test_accumulated_on_one_worker(folder_of: FolderOf) -> None:
    retriever, recipe = config_of("masked-bert", folder_of), quick_recipe(negatives="gathered")
    expected = slow_gradients(session_of(retriever, recipe), POOLS["local"])
    assert_equal(gradients_of(session_of(retriever, recipe)), expected)


def _worker(rank: int, place: str, cases: list[tuple[BackboneRetriever, dict[str, Any]]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=WORKERS)
    found = [
        gradients_of(session_of(retriever, quick_recipe(**changes), workers=Workers.current()))
        for retriever, changes in cases
    ]
    torch.save(found, f"{place}/gradients-{rank}.pt")
    dist.destroy_process_group()


def test_two_workers(folder_of: FolderOf, tmp_path: Path) -> None:
    kinds = [
        (CASES[0], "local"),
        (CASES[1], "gathered"),
        (CASES[1], "cached"),
        (CASES[2], "gathered"),
        (CASES[3], "cached"),
        (CASES[4], "local"),
        (CASES[4], "gathered"),
        (CASES[4], "cached"),
    ]
    cases = [(config_of(case, folder_of), {"negatives": negatives, **changes}) for (case, changes), negatives in kinds]
    on_workers(_worker, str(tmp_path), cases)
    first, second = (torch.load(tmp_path / f"gradients-{rank}.pt") for rank in range(WORKERS))
    for number, (retriever, changes) in enumerate(cases):
        expected = slow_gradients(session_of(retriever, quick_recipe(**changes)), POOLS[changes["negatives"]])
        assert_equal(first[number], expected)
        assert_equal(second[number], first[number])
