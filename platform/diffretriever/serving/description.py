"""OpenAPI metadata: tags, security schemes, and examples of requests and problems."""

from __future__ import annotations

from typing import Any

from fastapi import Body
from pydantic import BaseModel

from diffretriever.schemas import serve as http
from diffretriever.serving import problems

TAGS = [
    {"name": "search", "description": "Rank passages, and encode queries into vectors and terms."},
    {"name": "passages", "description": "Change the index. Each request is atomic."},
    {"name": "service", "description": "State of the index and of the server. The health checks need no key."},
]
COMPONENTS: dict[str, dict[str, Any]] = {
    "schemas": {"Problem": http.Problem.model_json_schema()},
    "securitySchemes": {
        "bearer": {"type": "http", "scheme": "bearer", "description": "API key, if the server has keys."},
    },
}
"""Components that routes do not define."""
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {}]
"""A key, or none if the server has no keys."""

SEARCHING = http.SearchRequest(
    query="when do I prune roses?", k=3, budget="adaptive", filter="collection = 'notes'", explain=True, words=3
)
ENCODING = http.EncodeRequest(query="when do I prune roses?")
ADDING = http.IngestRequest(
    passages=[
        http.PassageIn(id="note-1", title="Roses", text="Prune them in late winter, above a bud.", collection="notes"),
        http.PassageIn(id="note-2", text="Sourdough rises for a night."),
    ]
)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    kinds: list[type[problems.RequestError]] = [problems.RequestError, *problems.RequestError.__subclasses__()]
    for kind in kinds:
        if kind.status in statuses and kind.status not in responses:
            example = http.Problem(
                type=f"urn:diffretriever:problem:{kind.kind}",
                title=kind.title,
                status=kind.status,
                detail="what is wrong with this request",
                fix="what to do",
                instance="/search",
            ).model_dump(mode="json")
            content = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
            responses[kind.status] = {"description": kind.title, "content": {"application/problem+json": content}}
    return responses


def body(example: BaseModel) -> Any:
    """Return a request body with an example, without default values."""
    value = example.model_dump(mode="json", exclude_defaults=True)
    return Body(openapi_examples={"example": {"summary": "Example", "value": value}})
