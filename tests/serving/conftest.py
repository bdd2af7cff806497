"""A small index and a service over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.serving.serving_cases import local_service, random_encoder, small_index

KEY = "a-key-for-tests"


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return random_encoder(tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="session")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """Not to be changed."""
    return small_index(encoder, str(tmp_path_factory.mktemp("index")))


@pytest.fixture
def own_index(index: PassageIndex, tmp_path: Path) -> PassageIndex:
    """To be changed."""
    shutil.copytree(index.uri, tmp_path / "index")
    return PassageIndex.open(str(tmp_path / "index"))


@pytest.fixture(scope="module")
def client(index: PassageIndex) -> Iterator[TestClient]:
    limits = {"max_query_chars": 200, "max_queries": 4, "max_k": 50, "max_body_bytes": 4000, "max_passages": 3}
    service = local_service(index.uri, limits=limits)
    with TestClient(make_api(service, Keys.of(KEY), None), headers={"Authorization": f"Bearer {KEY}"}) as made:
        yield made
