"""Accumulated gradients of two workers equal those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.batches import MicroBatch
from diffretriever.training.data.seeds import seed_torch
from diffretriever.training.gather import Workers
from diffretriever.training.objective import objective
from diffretriever.training.session import Session
from diffretriever.training.trainable import encode_with_gradients, join
from tests.training.trainer_cases import (
    ALONE,
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
POOLS = [[0, 1], [2, 3]]
"""Parts that share their candidates, a part from each of two workers."""


def start(session: Session) -> None:
    """Set B to random values; with zeros, A would have no gradient."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in trainable_parameters(session.encoder.backbone).items():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)


def slow_answers(micro_batches: list[MicroBatch], each: int) -> Tensor:
    rows = [int(query_id[1:]) for part in micro_batches for query_id in part.query_ids]
    candidates = [text for row in rows for text in own_texts(row, each)]
    return torch.tensor([[text in answers_to(row) for text in candidates] for row in rows])


def gradients_of(session: Session) -> Gradients:
    """The averaged gradients of a step of the training loop, before clipping."""
    start(session)
    trainer, actual = session.trainer, Gradients()

    def keep(_: float) -> float:
        trainer.engine._average()  # type: ignore[union-attr]  # the plain engine
        parameters = trainable_parameters(session.encoder.backbone)
        actual.update({name: p.grad.clone() for name, p in parameters.items() if p.grad is not None})
        return 1.0

    with patch.object(trainer.engine, "step", keep):
        next(trainer.run())
    return actual


def slow_gradients(session: Session) -> Gradients:
    """Of the mean over pools of the loss of all texts of a pool, encoded at once by one process.

    Parts have dropout of their own: they are encoded one by one, but all with gradient.
    """
    start(session)
    trainer = session.trainer
    session.encoder.backbone.model.train()
    micro_batches = trainer.batches.micro_batches(0)
    for pool in POOLS:
        queries, passages = [], []
        for number in pool:
            seed_torch("dropout", trainer.recipe.seed, 0, number)
            queries.append(encode_with_gradients(trainer.encoder, micro_batches[number].queries))
            passages.append(encode_with_gradients(trainer.encoder, micro_batches[number].passages))
        answers_QP = slow_answers([micro_batches[number] for number in pool], 1 + trainer.recipe.hard_negatives)
        if trainer.recipe.equal_passages == "keep":
            answers_QP[:] = False
        loss = objective(join(queries), join(passages), trainer.recipe, answers_QP).loss
        (loss / len(POOLS)).backward()
    return {n: p.grad.clone() for n, p in trainable_parameters(session.encoder.backbone).items() if p.grad is not None}


def assert_equal(actual: Gradients, expected: Gradients) -> None:
    assert actual.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-5 * max(1.0, largest), rtol=1e-5, msg=name)


BARE = {"nested_slots": True, "prompt": {"variant": "bare"}, "tail_length": 1}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("masked-dream", {}, {"lora_dropout": 0.3, "query_budgets": (1, 2)}),
    ("generated-llama3", {}, {"lora_dropout": 0.0}),
    ("pooled-bert", {}, {"lora_dropout": 0.3, "gradient_checkpointing": True, "equal_passages": "keep"}),
    ("masked-bert", {"adapter_on": "slots", **BARE}, {"lora_dropout": 0.3, "distillation_weight": 2.0}),
    ("masked-llada-2step", {}, {"lora_dropout": 0.3, "gradient_checkpointing": True}),
]
"""Retriever, changes of it, and changes of the recipe."""


def session(number: int, folder_of: FolderOf, workers: Workers = ALONE) -> Session:
    case, changes, recipe = CASES[number]
    return session_of(config_of(case, folder_of, **changes), quick_recipe(**recipe), workers=workers)


def _worker(rank: int, place: str, folders: dict[str, Path]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=WORKERS)
    actual = [
        gradients_of(session(number, folders.__getitem__, Workers(rank, WORKERS))) for number in range(len(CASES))
    ]
    torch.save(actual, f"{place}/gradients-{rank}.pt")
    dist.destroy_process_group()


def test_two_workers(folder_of: FolderOf, tmp_path: Path) -> None:
    folders = {case.split("-")[1]: folder_of(case.split("-")[1]) for case, *_ in CASES}
    on_workers(_worker, str(tmp_path), folders)
    first, second = (torch.load(tmp_path / f"gradients-{rank}.pt") for rank in range(WORKERS))
    for number in range(len(CASES)):
        assert_equal(first[number], slow_gradients(session(number, folder_of)))
        assert_equal(second[number], first[number])
