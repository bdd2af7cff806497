"""The application under requests drawn from its own description: the full form of tests/serving/test_schema_fuzz.py."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from pydantic import PositiveInt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from benchmarks._common import header  # noqa: E402  (found through it)
from schemas.settings import JobConfig  # noqa: E402


class FuzzBenchmark(JobConfig):
    """Ask every operation as described and otherwise; stop with the request at a server error or a wrong answer."""

    index: str = "demo/indexes/diffretriever-minilm"
    """Folder of the index to serve; passages are written to a copy of it."""
    examples: PositiveInt = 300
    """Requests of each operation, as described and otherwise."""


def main(config: FuzzBenchmark) -> None:
    """Ask, and print a table of statuses."""
    import schemathesis

    from benchmarks._serve_fuzz import CASES, fuzz
    from diffretriever.evaluation.tables import format_table
    from diffretriever.serving.api import make_api
    from tests.serving.serving_cases import local_service

    about = header()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(config.index, Path(folder) / "index")
        described = schemathesis.openapi.from_asgi("/openapi.json", make_api(local_service(str(copy)), None, None))
        rows = []
        for method, path, mode in CASES:
            statuses = fuzz(described, method, path, mode, config.examples)
            found = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            rows.append([f"{method} {path}", "as described" if mode.is_positive else "otherwise", found])
    print("\n".join(f"{name}: {text}" for name, text in about.items()))
    print()
    print(format_table(rows, ("operation", "requests", "answers by status")))


if __name__ == "__main__":
    main(FuzzBenchmark.from_command_line())
