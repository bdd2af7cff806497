"""Training that resumes bit for bit, errors that name the queries, and what cannot be trained."""

from __future__ import annotations

import dataclasses
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from diffretriever.backbones.flops import Matrices, reached_flops
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.training import Recipe
from diffretriever.training.adapters import adapter_tensors, trainable_parameters
from diffretriever.training.engine import open_engine
from diffretriever.training.gather import Workers
from diffretriever.training.session import check_trainable
from diffretriever.training.trainable import with_training_lengths
from tests.training.trainer_cases import FolderOf, ListedData, config_of, quick_recipe, run, session_of

DROPOUT = {
    "lora_dropout": 0.3,
    "query_budgets": (1, 2, 4),
    "passage_budgets": (1, 3),
    "max_steps": 4,
    "batch_queries": 4,
}


@pytest.mark.parametrize(
    ("case", "negatives"),
    [*product(("masked-bert", "generated-qwen2"), ("gathered", "cached")), ("masked-llada-2step", "cached")],
)
def test_resumed_bit_for_bit(case: str, negatives: str, folder_of: FolderOf, tmp_path: Path) -> None:
    retriever, recipe = config_of(case, folder_of), quick_recipe(negatives=negatives, **DROPOUT)
    straight = session_of(retriever, recipe)
    expected = run(straight, 4)
    torch.rand(17)  # another state of the generator: nothing may depend on it
    killed = session_of(retriever, recipe)
    run(killed, 2)
    killed.trainer.save(tmp_path)
    torch.rand(3)
    resumed = session_of(retriever, recipe)
    resumed.trainer.load(tmp_path)
    found = run(resumed, 4)
    assert [m.step for m in found] == [3, 4]
    assert [(m.loss, m.gradient_norm, m.learning_rate) for m in found] == [
        (m.loss, m.gradient_norm, m.learning_rate) for m in expected[2:]
    ]
    first, second = adapter_tensors(straight.encoder.backbone), adapter_tensors(resumed.encoder.backbone)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_broken_loss_names_step_and_queries(folder_of: FolderOf) -> None:
    session = session_of(config_of("pooled-dream", folder_of), quick_recipe())
    run(session, 2)
    with torch.no_grad():
        next(iter(trainable_parameters(session.encoder.backbone).values())).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the loss is nan at step 2, with these queries on worker 0: q\d+, q\d+\."):
        run(session, 3)


def test_a_broken_gradient_is_an_error(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(config_of("pooled-dream", folder_of), quick_recipe())
    monkeypatch.setattr(session.trainer.engine, "step", lambda _: float("inf"))
    with pytest.raises(ValueError, match="the gradient's norm is inf at step 0"):
        run(session, 1)


@pytest.mark.parametrize("negatives", ["gathered", "cached"])
def test_useful_operations_alone_count(negatives: str, folder_of: FolderOf) -> None:
    """Not padding, nor the second pass of gradient caching."""
    session = session_of(config_of("masked-bert", folder_of), quick_recipe(negatives=negatives))
    backbone = session.encoder.backbone
    (metrics,) = run(session, 1)
    lengths = np.concatenate([part.lengths for part in session.trainer.batches.parts(0)])
    assert len(lengths) == 8 * 4
    needed = Matrices.of(backbone).training_flops(lengths) / reached_flops(backbone.device, backbone.dtype)
    assert metrics.utilisation / metrics.tokens_per_second == pytest.approx(needed / lengths.sum(), rel=1e-5)


def test_gradients_are_clipped_and_rates_followed(folder_of: FolderOf) -> None:
    session = session_of(config_of("pooled-dream", folder_of), quick_recipe(clip_norm=1e-3, weight_decay=0.0))
    parameters = trainable_parameters(session.encoder.backbone)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    size = sum(p.numel() for p in parameters.values())
    assert session.trainer.engine.step(0.0) == pytest.approx(size**0.5)
    moments = session.trainer.engine._optimizer.state  # type: ignore[attr-defined]
    for parameter in parameters.values():
        torch.testing.assert_close(moments[parameter]["exp_avg"], torch.full_like(parameter, 0.1 * 1e-3 / size**0.5))


@pytest.mark.parametrize(
    ("case", "changes", "recipe", "message"),
    [
        ("masked-dream", {"stop_truncation": "quote"}, {}, "stop_truncation to none"),
        ("pooled-dream", {}, {"query_budgets": (1, 2)}, "no slots"),
    ],
)
def test_what_cannot_be_trained(
    case: str, changes: dict[str, object], recipe: dict[str, object], message: str, folder_of: FolderOf
) -> None:
    with pytest.raises(ValueError, match=message):
        check_trainable(config_of(case, folder_of, **changes), quick_recipe(**recipe))
    with pytest.raises(ValueError, match="the bm25 method cannot be trained"):
        check_trainable(Bm25Retriever(), quick_recipe())


def test_distillation_needs_a_teacher(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ListedData.group
    monkeypatch.setattr(ListedData, "group", lambda *args, **kw: dataclasses.replace(group(*args, **kw), scores=None))
    with pytest.raises(ValueError, match="distillation: kl needs a teacher's scores of a positive and 2 negatives"):
        session_of(config_of("pooled-bert", folder_of), quick_recipe(distillation="kl"))


def test_lengths_are_the_recipes(folder_of: FolderOf) -> None:
    text = with_training_lengths(config_of("pooled-qwen2", folder_of), Recipe()).text
    assert (text.max_query_tokens, text.max_passage_tokens) == (32, 156)


def test_the_checkpoint_of_another_adapter_is_refused(tmp_path: Path) -> None:
    layer, weight = torch.nn.Identity(), torch.nn.Parameter(torch.ones(2))
    open_engine(layer, {"a": weight}, quick_recipe(), Workers(0, 1)).save(tmp_path)
    with pytest.raises(ValueError, match="the checkpoint of another adapter"):
        open_engine(layer, {"b": weight}, quick_recipe(), Workers(0, 1)).load(tmp_path)


def test_deepspeed_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    layer, weight = torch.nn.Identity(), torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"pip install 'diffretriever\[train\]'"):
        open_engine(layer, {"a": weight}, quick_recipe(strategy="deepspeed"), Workers(0, 1))
