"""The OpenAPI description: valid, complete, and its examples are what the application takes and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from fastapi.testclient import TestClient

from diffretriever.index.table import PassageIndex
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
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_it_is_valid(document: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(document).validate()


def examples(content: dict[str, Any]) -> list[Any]:
    named = [each["value"] for each in content.get("examples", {}).values()]
    return [*named, content["example"]] if "example" in content else named


def test_every_request_and_answer_has_an_example_of_its_schema(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
        contents += [answer["content"] for answer in operation["responses"].values()]
        for content in contents:
            (described,) = content.values()
            schema = {"components": document["components"], **described["schema"]}
            assert examples(described), (method, path)
            for example in examples(described):
                jsonschema.validate(example, schema, jsonschema.Draft202012Validator)


def test_its_examples_are_answered(client: TestClient, document: dict[str, Any]) -> None:
    """Passages are added before they are searched for, and deleted at the end."""
    order = ["/passages", "/search", "/encode", "/index", "/healthz", "/readyz", "/passages/{passage_id}"]
    found = sorted(operations(document), key=lambda each: order.index(each[1]))
    assert len(found) == len(order)
    for method, path, operation in found:
        place = path.replace("{passage_id}", "note-1")
        bodies = (
            examples(operation["requestBody"]["content"]["application/json"]) if "requestBody" in operation else [None]
        )
        for body in bodies:
            response = client.request(method, place, json=body)
            assert response.status_code == 200, response.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("path", ["/search", "/encode", "/passages"])
def test_a_body_that_is_not_said_to_be_json_is_refused(client: TestClient, path: str, content_type: str) -> None:
    response = client.post(path, content=b'{"query": "heat"}', headers={"content-type": content_type})
    found = response.json()
    assert (response.status_code, found["field"]) == (415, "content-type")
    assert content_type in found["detail"]
    assert "application/json" in found["fix"]
