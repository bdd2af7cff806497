"""Training resumes bit for bit, and errors name the queries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import Bm25Retriever, MaskedRetriever
from diffretriever.schemas.training import TrainJob
from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.engine import PlainEngine
from diffretriever.training.gather import Workers
from diffretriever.training.session import check_trainable
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of, with_dtype

GOLDEN = [
    (2.70166, 0.00240804, 2.68843, 0.00135344, 3.63253),
    (2.18182, 0.0988617, 2.06096, 0.00275047, 13.1849),
    (2.49662, 0.252666, 2.06003, 0.0229906, 17.488),
]
"""Loss, its dense, sparse and distillation terms, and the gradient's norm of three steps of the recipe `minilm`."""
ON_SLOTS: dict[str, object] = {"adapter_on": "slots", "nested_slots": True, "tail_length": 0}


def test_the_embedded_models_recipe(tmp_path: Path) -> None:
    preset = load_retriever("diffretriever-minilm").model_dump(exclude={"default_mode"})
    preset["backbone"] |= {"adapter": None, "dtype": "float32", "attention": "sdpa"}
    small = {"batch_queries": 8, "queries_per_device": 4, "max_steps": 3, "workers": 1}
    job = TrainJob.model_validate({"recipe": "minilm", "train": "x", "output": tmp_path, **small})
    session = session_of(MaskedRetriever.model_validate(preset | {"budget": "q4p8"}), job.hyperparameters)
    for actual, (*terms, norm) in zip(run(session, 3), GOLDEN, strict=True):
        losses = [actual.loss, actual.dense_loss, actual.sparse_loss, actual.distillation_loss]
        assert losses == pytest.approx(terms, rel=1e-3, abs=1e-5)
        assert actual.gradient_norm == pytest.approx(norm, rel=1e-3)


@pytest.mark.parametrize(
    ("case", "dtype"), [("masked-bert", "float32"), ("generated-qwen2", "float32"), ("masked-llada-2step", "bfloat16")]
)
def test_resumed_bit_for_bit(case: str, dtype: str, folder_of: FolderOf, tmp_path: Path) -> None:
    budgets: dict[str, object] = {}
    if case.startswith("masked"):
        budgets = {"query_budgets": (1, 2, 4), "passage_budgets": (1, 3), "slot_layers": 4}
    retriever, recipe = (
        with_dtype(config_of(case, folder_of), dtype),
        quick_recipe(max_steps=4, lora_dropout=0.3, **budgets),
    )
    straight = session_of(retriever, recipe)
    expected = run(straight, 4)
    torch.rand(17)  # another state of the generator: nothing may depend on it
    killed = session_of(retriever, recipe)
    run(killed, 2)
    killed.trainer.save(tmp_path)
    torch.rand(3)
    resumed = session_of(retriever, recipe)
    resumed.trainer.load(tmp_path)
    actual = run(resumed, 4)
    assert [m.step for m in actual] == [3, 4]
    assert [(m.loss, m.gradient_norm, m.learning_rate) for m in actual] == [
        (m.loss, m.gradient_norm, m.learning_rate) for m in expected[2:]
    ]
    first, second = (trainable_parameters(session.encoder.backbone) for session in (straight, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {parameter.dtype for parameter in first.values()} == {torch.float32}


def test_a_broken_loss_names_step_and_queries(folder_of: FolderOf) -> None:
    session = session_of(config_of("pooled-dream", folder_of), quick_recipe())
    run(session, 2)
    with torch.no_grad():
        next(iter(trainable_parameters(session.encoder.backbone).values())).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the loss is nan at step 2, with these queries on worker 0: q\d+, q\d+:"):
        run(session, 3)


def test_a_broken_gradient_is_an_error(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(config_of("pooled-dream", folder_of), quick_recipe())
    monkeypatch.setattr(session.trainer.engine, "step", lambda _: float("inf"))
    with pytest.raises(ValueError, match="the gradient's norm is inf at step 0"):
        run(session, 1)


@pytest.mark.parametrize(
    ("case", "changes", "recipe", "message"),
    [
        ("masked-dream", {"stop_truncation": "special"}, {}, "stop_truncation to none"),
        ("pooled-dream", {}, {"query_budgets": (1, 2)}, "no slots"),
        ("masked-bert", ON_SLOTS, {"gradient_checkpointing": True}, "set --no-gradient-checkpointing"),
        ("pooled-bert", {}, {"slot_layers": 4}, "the pooled method has no slots for the recipe's slot_layers"),
        ("masked-bert", {}, {"slot_layers": 2}, "layers for 2 slots, but texts have up to 3"),
        ("masked-bert", {}, {"slot_layers": 4, "query_budgets": (1, 8)}, "texts have up to 8"),
        ("masked-bert", {}, {"distillation_weight": 1.0}, "set the retriever's adapter_on to slots and steps to 1"),
    ],
)
def test_retrievers_that_a_recipe_cannot_train_are_refused(
    case: str, changes: dict[str, object], recipe: dict[str, object], message: str, folder_of: FolderOf
) -> None:
    with pytest.raises(ValueError, match=message):
        check_trainable(config_of(case, folder_of, **changes), quick_recipe(**recipe))
    with pytest.raises(ValueError, match="the bm25 method cannot be trained"):
        check_trainable(Bm25Retriever(), quick_recipe())


def test_the_checkpoint_of_another_adapter_is_refused(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    PlainEngine({"a": weight}, Workers(0, 1)).save(tmp_path)
    with pytest.raises(ValueError, match="the checkpoint is of another adapter"):
        PlainEngine({"b": weight}, Workers(0, 1)).load(tmp_path)
