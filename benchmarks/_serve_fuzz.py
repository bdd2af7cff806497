"""Requests drawn from the application's OpenAPI description, good and bad, and what every answer must be."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

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
CASES = [(*each, GenerationMode.POSITIVE) for each in OPERATIONS] + [
    # What has no body has nothing that could be wrong.
    (method, path, GenerationMode.NEGATIVE)
    for method, path in OPERATIONS
    if method == "POST"
]
"""Method, path, and whether requests are as described or not."""


def fuzz(described: Any, method: str, path: str, mode: GenerationMode, examples: int) -> Counter[int]:
    """Ask so many times, and count the answers by status.

    Args:
        described: what schemathesis has read of the application.
        method: of the operation.
        path: of the operation, as the description has it.
        mode: whether to ask as described.
        examples: requests at most.

    Raises:
        Exception: schemathesis's own, with the request, if an answer is a server error or not as described.
    """
    operation = described[path][method]
    statuses: Counter[int] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

    ask()
    return statuses
