"""The OpenAPI description, and its examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from fastapi.testclient import TestClient

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.serve import Problem
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.serving.serving_cases import local_service

KEY = "a-key-for-tests"


@pytest.fixture
def client(own_index: PassageIndex) -> Iterator[TestClient]:
    api = make_api(local_service(own_index.uri), Keys.of(KEY, "reading"), None)
    with TestClient(api, headers={"Authorization": f"Bearer {KEY}"}) as made:
        yield made


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_the_description_is_valid(document: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(document).validate()


def test_examples_of_requests_succeed_and_their_responses_match_the_schema(
    client: TestClient, document: dict[str, Any]
) -> None:
    order = ["/passages", "/search", "/encode", "/index", "/healthz", "/readyz", "/passages/{passage_id}"]
    assert sorted(document["paths"]) == sorted(order)
    for path in order:
        ((method, operation),) = document["paths"][path].items()
        content = operation.get("requestBody", {"content": {}})["content"]
        body = content["application/json"]["examples"]["example"]["value"] if content else None
        response = client.request(method, path.replace("{passage_id}", "note-1"), json=body)
        assert response.status_code == 200, response.text
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {"components": document["components"], **schema})


def test_every_problem_has_an_example(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status != "200":
                    example = response["content"]["application/problem+json"]["example"]
                    assert Problem.model_validate(example).status == int(status)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("path", ["/search", "/encode", "/passages"])
def test_a_body_without_the_content_type_json_is_rejected(client: TestClient, path: str, content_type: str) -> None:
    response = client.post(path, content=b'{"query": "heat"}', headers={"content-type": content_type})
    problem = response.json()
    assert (response.status_code, problem["field"]) == (415, "content-type")
    assert content_type in problem["detail"]
    assert "application/json" in problem["fix"]
