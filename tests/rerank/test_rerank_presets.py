"""Named rerankers and reranker files."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.presets import load_retriever
from diffretriever.rerank import reranker_config
from diffretriever.schemas.rerank import QueryLikelihoodConfig, RerankJob
from diffretriever.schemas.retriever import MaskedRetriever


@pytest.mark.parametrize("backbone", ["dream", "llada", "minilm"])
def test_presets_name_the_retrievers_backbones(backbone: str) -> None:
    retriever = load_retriever(f"diffretriever-{backbone}")
    assert isinstance(retriever, MaskedRetriever)
    assert reranker_config(f"query-likelihood-{backbone}").backbone.source == retriever.backbone.source


def test_dream_is_read_one_position_before_a_token() -> None:
    for name, offset in (("dream", -1), ("llada", 0)):
        config = reranker_config(f"query-likelihood-{name}")
        assert isinstance(config, QueryLikelihoodConfig)
        assert config.read_offset == offset


def test_mistakes_name_the_file_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'query-likelihood-dream'"):
        reranker_config("query-likelihood-drem")
    with pytest.raises(ValueError, match=r"no file nowhere\.yaml"):
        reranker_config("nowhere.yaml")
    file = tmp_path / "mine.yaml"
    file.write_text("method: query-likelihood\nbackbone: {source: minilm}\nread_ofset: 0\n")
    with pytest.raises(ValueError, match=r"mine\.yaml.*Did you mean 'read_offset'"):
        reranker_config(str(file))


def test_a_run_is_not_written_over_itself(tmp_path: Path) -> None:
    run = tmp_path / "run.trec"
    with pytest.raises(ValueError, match="would overwrite --run"):
        RerankJob(run=run, collection="pydoc", reranker="query-likelihood-minilm", output=run)
