"""The application under requests drawn from its own description, good and bad, and what every answer must be.

A short form is a test: tests/serving/test_schema_fuzz.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import PositiveInt
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from benchmarks.measuring import header, print_report, run
from diffretriever.schemas.settings import JobConfig

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


class FuzzBenchmark(JobConfig):
    """Ask every operation as described and otherwise; stop with the request at a server error or a wrong answer."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Folder of the index to serve; passages are written to a copy of it."""
    examples: PositiveInt = 300
    """Requests of each operation, as described and otherwise."""


def main(config: FuzzBenchmark) -> None:
    """Ask, and print a table of statuses."""
    from diffretriever.evaluation.formats.tables import format_table
    from diffretriever.serving.api import make_api
    from diffretriever.serving.guard import Keys
    from tests.serving.serving_cases import local_service

    about = header()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(config.index, Path(folder) / "index")
        described = schemathesis.openapi.from_asgi("/openapi.json", make_api(local_service(str(copy)), Keys(), None))
        rows = []
        for method, path, mode in CASES:
            statuses = fuzz(described, method, path, mode, config.examples)
            found = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            rows.append([f"{method} {path}", "as described" if mode.is_positive else "otherwise", found])
    print_report(about, "\n" + format_table(rows, ("operation", "requests", "answers by status")))


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


if __name__ == "__main__":
    run(FuzzBenchmark, main)
