"""Rerankers over tiny random checkpoints."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from diffretriever.backbones.loader import load_backbone
from diffretriever.collections.beir import write_beir_folder
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.schemas.rerank import QueryLikelihoodConfig, RerankJob
from diffretriever.schemas.retriever import BackboneConfig
from tests.rerank.rerank_cases import DEPTH, FAMILIES, PASSAGES, QUERIES, RUN, FolderOf, MakeJob, MakeReranker


@pytest.fixture(scope="session")
def make_reranker(folder_of: FolderOf) -> MakeReranker:
    """A reranker with a config of its own over a family's backbone, which is loaded once."""
    backbone_of = cache(lambda family: load_backbone(folder_of(family), device="cpu"))

    def make(family: str, **fields: Any) -> QueryLikelihood:
        place = BackboneConfig(source=str(folder_of(family)), dtype="float32")
        return QueryLikelihood(QueryLikelihoodConfig(backbone=place, **fields), backbone_of(family))

    return make


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    write_beir_folder(tmp_path / "tiny", PASSAGES, QUERIES, {"test": {query.id: {"p1": 1} for query in QUERIES}})
    lines = [f"{q} Q0 {p} 1 {score} x\n" for q, scores in RUN.items() for p, score in scores.items()]
    (tmp_path / "run.trec").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def make_job(folder: Path, folder_of: FolderOf) -> MakeJob:
    reranker = {"method": "query-likelihood", "backbone": {"source": str(folder_of("llada")), "dtype": "float32"}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(reranker))

    def make(**fields: Any) -> RerankJob:
        places = {"run": folder / "run.trec", "collection": str(folder / "tiny"), "output": folder / "out" / "new.trec"}
        known = {"reranker": str(folder / "mine.yaml"), "depth": DEPTH, "device": "cpu"}
        return RerankJob.model_validate({**places, **known, **fields})

    return make
