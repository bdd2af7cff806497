"""Valid and invalid requests generated from the OpenAPI description never cause a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from schemathesis import GenerationMode

from benchmarks.serve.fuzz import CASES, OPERATIONS, fuzz
from diffretriever.encoders.base import Encoder
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.serving.serving_cases import local_service, small_index


@pytest.fixture(scope="module")
def described(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Any:
    uri = str(tmp_path_factory.mktemp("index"))
    small_index(encoder, uri)
    return schemathesis.openapi.from_asgi("/openapi.json", make_api(local_service(uri), Keys(), None))


def test_the_fuzzer_covers_all_operations(described: Any) -> None:
    operations = {(made.ok().method.upper(), made.ok().path) for made in described.get_all_operations()}
    assert operations == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_every_response_matches_the_description(described: Any, method: str, path: str, mode: GenerationMode) -> None:
    statuses = fuzz(described, method, path, mode, examples=20)
    assert (max(statuses) >= 400) or mode.is_positive
