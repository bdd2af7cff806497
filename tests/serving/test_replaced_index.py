"""An index that replaces the served one is served, or reported."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.budget import Budget
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.serving.service import Service
from tests.serving.serving_cases import local_service, random_encoder, write_passages

BEES = [Passage(f"b{number}", "", text) for number, text in enumerate(("heat of a hive", "honey", "wax"))]
ASKED = {"query": "heat", "k": 3, "mode": "dense"}
Move = Callable[[Encoder], None]


@pytest.fixture
def service(own_index: PassageIndex) -> Service:
    return local_service(own_index.uri)


@pytest.fixture
def move(own_index: PassageIndex, tmp_path: Path) -> Move:
    """Replaces the served index with another one that has the same version number."""

    def make(encoder: Encoder) -> None:
        path, other = Path(own_index.uri), tmp_path / "other"
        with patch("diffretriever.index.manifest._now", return_value="2020-01-01T00:00:00+00:00"):
            for passage in BEES:
                write_passages(encoder, str(other), [passage])
        shutil.rmtree(path)
        other.rename(path)

    return make


@pytest.mark.parametrize("is_followed", [True, False], ids=["looked at", "met by a request"])
def test_a_replacement_of_the_same_retriever_is_served(
    service: Service, own_index: PassageIndex, encoder: Encoder, move: Move, is_followed: bool
) -> None:
    with TestClient(make_api(service, Keys(), None)) as client:
        assert client.post("/search", json=ASKED).json()["index"]["version"] == own_index.version
        move(encoder)
        if is_followed:
            asyncio.run(service.refresh())
        else:
            met = client.post("/search", json=ASKED)
            assert (met.status_code, met.headers["Retry-After"]) == (503, "2")
        answer = client.post("/search", json=ASKED).raise_for_status().json()
        assert answer["index"]["version"] == own_index.version, "the same number, of another index"
        assert {hit["id"] for hit in answer["results"][0]["hits"]} == {passage.id for passage in BEES}
        assert client.get("/readyz").is_success
    assert not service.is_other_retriever


def test_a_replacement_of_another_retriever_needs_a_new_replica(
    service: Service, tmp_path: Path, encoder: Encoder, move: Move
) -> None:
    other = random_encoder(tmp_path / "llada")
    other.config = other.config.model_copy(update={"budget": Budget(1, 3)})
    move(other)
    with pytest.raises(ValueError, match="made by another retriever"):
        asyncio.run(service.refresh())
    assert service.is_other_retriever
    with TestClient(make_api(service, Keys(), None)) as client:
        for refused in (client.get("/readyz"), client.post("/search", json=ASKED)):
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
            assert "is being replaced" in refused.json()["detail"]


def test_a_missing_index_is_served_again_when_it_is_back(service: Service, own_index: PassageIndex) -> None:
    away = Path(own_index.uri).rename(f"{own_index.uri}-away")
    with pytest.raises(ValueError, match="no index at"):
        asyncio.run(service.refresh())
    with TestClient(make_api(service, Keys(), None)) as client:
        assert client.get("/readyz").status_code == 503
        away.rename(own_index.uri)
        asyncio.run(service.refresh())
        assert client.get("/readyz").is_success
        assert client.post("/search", json=ASKED).is_success
