"""The selection.json of a sweep as a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.presets import load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.sweep import BudgetSelection


@pytest.fixture
def selection(tmp_path: Path) -> Path:
    chosen = BudgetSelection(
        budget=Budget(2, 8),
        mode="hybrid",
        measure="nDCG@10",
        split="train",
        value=0.5,
        grid={Budget(2, 8): 0.5, Budget(1, 1): 0.25},
        queries=7,
        collection="scifact",
        retriever="masked minilm",
        backbone="minilm",
        adapter=None,
        fingerprint="0123456789abcdef",
        command="python jobs/sweep_budgets.py",
    )
    path = tmp_path / "selection.json"
    path.write_text(chosen.model_dump_json(), "utf-8")
    assert BudgetSelection.model_validate_json(path.read_text("utf-8")) == chosen
    return path


def budget_of(name: str, choice: Budget | Path | StorePath | None) -> Budget:
    config = load_retriever(name, budget=choice)
    assert isinstance(config, MaskedRetriever)
    return config.budget


def test_the_budget_flag_accepts_a_budget_or_a_selection(selection: Path, tmp_path: Path) -> None:
    arguments = ["--collection", "c", "--index", "i", "--budget"]
    plain = EncodeJob.from_command_line([*arguments, "q2p8"])
    chosen = EncodeJob.from_command_line([*arguments, str(selection)])
    assert (plain.budget, chosen.budget) == (Budget(2, 8), selection)
    (tmp_path / "job.yaml").write_text(chosen.to_yaml(), "utf-8")
    assert EncodeJob.from_command_line(["--config", str(tmp_path / "job.yaml")]) == chosen
    assert budget_of("diffretriever-minilm-untrained", selection) == Budget(2, 8)


def test_a_retriever_file_accepts_a_selection(selection: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"method: masked\nbackbone: {{source: minilm}}\nbudget: {selection}\n", "utf-8")
    assert budget_of(str(file), None) == Budget(2, 8)
    assert budget_of(str(file), Budget(1, 4)) == Budget(1, 4)


def test_a_selection_for_other_weights_is_rejected(selection: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"made for minilm, this retriever has GSAI-ML/LLaDA-8B-Instruct.*q2p8 was chosen"
    ):
        load_retriever("diffretriever-llada", budget=selection)
    (tmp_path / "lora").mkdir()
    with pytest.raises(ValueError, match=r"this retriever has minilm with adapter .*lora: sweep"):
        load_retriever("diffretriever-minilm-untrained", budget=selection, adapter=str(tmp_path / "lora"))
    with pytest.raises(ValueError, match="the pooled method has no slots"):
        load_retriever("minilm-pooled", budget=selection)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no file"), ("{", "give a selection.json"), ('{"buget": 1}', "Did you mean 'budget'")],
)
def test_an_invalid_selection_is_rejected(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message):
        load_retriever("diffretriever-minilm-untrained", budget=path)
