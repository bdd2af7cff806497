"""Named rerankers and reranker files."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.presets import load_retriever
from diffretriever.rerank import reranker_config, reranker_names
from diffretriever.schemas.rerank import RerankerConfig, RerankJob
from diffretriever.schemas.retriever import MaskedRetriever


@pytest.mark.parametrize("name", reranker_names())
def test_every_preset_is_complete_and_round_trips(name: str) -> None:
    config = reranker_config(name)
    assert RerankerConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("backbone", ["dream", "llada", "minilm"])
def test_presets_name_the_retrievers_backbones(backbone: str) -> None:
    retriever = load_retriever(f"diffretriever-{backbone}")
    assert isinstance(retriever, MaskedRetriever)
    assert reranker_config(f"diffurank-{backbone}").backbone.source == retriever.backbone.source


def test_dream_is_read_one_position_before_a_token() -> None:
    assert reranker_config("diffurank-dream").read_offset == -1
    assert reranker_config("diffurank-llada").read_offset == 0


def test_another_backbone_takes_the_place_of_the_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    assert reranker_config("diffurank-dream", "weights").backbone.source == str(tmp_path / "weights")
    assert reranker_config("diffurank-dream", "org/name").backbone.source == "org/name"


def test_mistakes_name_the_file_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'diffurank-dream'"):
        reranker_config("diffurank-drem")
    with pytest.raises(ValueError, match=r"no file nowhere\.yaml"):
        reranker_config("nowhere.yaml")
    file = tmp_path / "mine.yaml"
    file.write_text("backbone: {source: minilm}\nread_ofset: 0\n")
    with pytest.raises(ValueError, match=r"mine\.yaml.*Did you mean 'read_offset'"):
        reranker_config(str(file))


def test_a_run_is_not_written_over_itself(tmp_path: Path) -> None:
    run = tmp_path / "run.trec"
    with pytest.raises(ValueError, match="is the run itself"):
        RerankJob(run=run, collection="pydoc", reranker="diffurank-minilm", output=run)
