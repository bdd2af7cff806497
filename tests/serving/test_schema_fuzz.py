"""Requests drawn from the OpenAPI description, good and bad: no 5xx, and every answer is as described."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from diffretriever.encoders.base import Encoder
from diffretriever.serving.api import make_api
from tests.serving.serving_cases import local_service, small_index

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [
    ("POST", "/search"),
    ("POST", "/encode"),
    ("GET", "/index"),
    ("POST", "/passages"),
    ("DELETE", "/passages/{passage_id}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
]


@pytest.fixture(scope="module")
def described(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Any:
    uri = str(tmp_path_factory.mktemp("index"))
    small_index(encoder, uri)
    return schemathesis.openapi.from_asgi("/openapi.json", make_api(local_service(uri), None, None))


def test_all_operations_are_drawn_from(described: Any) -> None:
    found = {(made.ok().method.upper(), made.ok().path) for made in described.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*each, GenerationMode.POSITIVE) for each in OPERATIONS]
    # What has no body has nothing that could be wrong.
    + [(method, path, GenerationMode.NEGATIVE) for method, path in OPERATIONS if method == "POST"],
)
def test_every_answer_is_as_described(described: Any, method: str, path: str, mode: GenerationMode) -> None:
    operation = described[path][method]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    ask()
