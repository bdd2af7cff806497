"""Configs: round trips, suggestions, precedence of command line, environment and file."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from diffretriever.presets import list_presets, load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.retriever import (
    RETRIEVER_ADAPTER,
    BackboneRetriever,
    Bm25Retriever,
    InstalledRetriever,
    MaskedRetriever,
    NeuralRetriever,
    RetrieverConfig,
    has_slots,
    is_neural,
    is_trainable,
)

ROOT = Path(__file__).resolve().parents[2]


@given(st.integers(1, 999), st.integers(1, 999))
def test_budget_round_trips(query: int, passage: int) -> None:
    budget = Budget(query, passage)
    assert Budget.parse(str(budget)) == budget
    assert pickle.loads(pickle.dumps(budget)) == budget


@pytest.mark.parametrize("text", ["", "q4", "4,16", "q0p4", "q4p16 ", "p4q16", "q-1p1"])
def test_an_invalid_budget_shows_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="q4p16"):
        Budget.parse(text)


@pytest.mark.parametrize("name", list_presets())
def test_presets_are_valid_and_round_trip(name: str) -> None:
    config = load_retriever(name)
    assert RETRIEVER_ADAPTER.validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("name", list_presets())
def test_capabilities_match_their_type_guards(name: str) -> None:
    config: RetrieverConfig = load_retriever(name)
    assert is_neural(config) == (type(config) in get_args(NeuralRetriever)) == ("backbone" in type(config).model_fields)
    assert is_trainable(config) == (type(config) in get_args(BackboneRetriever))
    assert has_slots(config) == (type(config) is MaskedRetriever) == ("budget" in type(config).model_fields)
    assert ("dense" in config.modes) == (config.max_vectors("passage") > 0)


def test_every_method_has_a_preset() -> None:
    methods = {*get_args(NeuralRetriever), Bm25Retriever} - {InstalledRetriever}
    assert {type(load_retriever(name)) for name in list_presets()} == methods


def test_code_checks_capabilities_and_not_methods() -> None:
    files = [file for folder in ("platform", "schemas", "jobs", "serve") for file in (ROOT / folder).rglob("*.py")]
    checks = [file for file in files if re.search(r"isinstance\([^)]*Retriever\b", file.read_text())]
    assert {str(file.relative_to(ROOT)) for file in checks} <= {"platform/diffretriever/search/bm25.py"}


def test_paper_presets_have_the_papers_checkpoints_and_budgets() -> None:
    dream, llada = load_retriever("diffretriever-dream"), load_retriever("diffretriever-llada")
    assert isinstance(dream, MaskedRetriever)
    assert isinstance(llada, MaskedRetriever)
    assert (dream.backbone.source, dream.budget) == ("Dream-org/Dream-v0-Instruct-7B", Budget(4, 16))
    assert (llada.backbone.source, llada.budget) == ("GSAI-ML/LLaDA-8B-Instruct", Budget(4, 4))


def test_presets_reject_unknown_names_and_parts_that_the_method_lacks() -> None:
    with pytest.raises(ValueError, match="Did you mean 'diffretriever-dream'"):
        load_retriever("diffretriever-drem")
    with pytest.raises(ValueError, match="no slots"):
        load_retriever("minilm-pooled", budget=Budget(2, 2))
    with pytest.raises(ValueError, match="no backbone"):
        load_retriever("bm25", backbone="minilm")


def test_a_local_backbone_becomes_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_retriever("diffretriever-dream", backbone="weights")
    assert isinstance(config, MaskedRetriever)
    assert config.backbone.source == str(tmp_path / "weights")


def test_flags_override_the_environment_and_the_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("collection: from-file\nindex: from-file\nretriever: from-file\nencoders: 3\n")
    monkeypatch.setenv("DIFFRETRIEVER_INDEX", "from-environment")
    monkeypatch.setenv("DIFFRETRIEVER_RETRIEVER", "from-environment")
    job = EncodeJob.from_command_line(["--config", str(file), "--retriever", "from-flag", "--budget", "q2p8"])
    assert (job.collection, job.index, job.retriever) == ("from-file", "from-environment", "from-flag")
    assert (job.encoders, job.budget) == (3, Budget(2, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--colection", "x"], "unknown flag --colection. Did you mean '--collection'?"),
        (["--collection", "x"], "--index is required"),
        (["--collection", "x", "--index", "y", "--encoders", "two"], "--encoders: Input should be a valid integer"),
        (["--collection", "x", "--index", "y", "--fields", "text"], "--fields 'text': write NAME=VALUE"),
        (["--collection", "x", "--index", "y", "--budget", "4x4"], "'4x4' is not a budget"),
        (["--collection", "x", "--index", "y", "--on-bad-input", "drop"], "--on-bad-input"),
    ],
)
def test_an_invalid_command_line_exits_with_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        EncodeJob.from_command_line(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_unknown_key_in_a_job_file_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("colection: x\n")
    with pytest.raises(SystemExit):
        EncodeJob.from_command_line(["--config", str(file)])
    assert f"unknown key 'colection' in {file}. Did you mean 'collection'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"index": "i"}, "--index needs --collection"),
        ({"index": "i", "collection": "c", "qrels": "q"}, "--qrels, --weights and --tune-runs need --runs"),
    ],
)
def test_evaluate_needs_one_source(values: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluateJob.model_validate({"output": "o", **values})
