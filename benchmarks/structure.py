"""How large the library is, which packages import each other in a cycle, and how much code one real call crosses.

Nothing is timed. Each call runs once to load and import, and is traced the second time, from outside, on all threads.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Self

from benchmarks import ROOT
from benchmarks.measuring import Benchmark, header, run

_TREES = ("platform/diffretriever", "schemas", "serve", "jobs")
_LINES = ("package", "files", "lines", "code")
_CALLS = ("call", "files", "functions", "depth", "hops")
_TEXTS = [f"passage number {number} on roses and bread {7 * number}" for number in range(40)]


class StructureBenchmark(Benchmark):
    """Count lines, import cycles, and the files, depth and hops of real calls.

    files: source files of the library that the call enters. depth: its deepest stack of the library's own frames. hops:
    changes from one file to another.
    """

    index: Path
    """Index to search, such as demo/indexes/diffretriever-minilm."""


def main(config: StructureBenchmark) -> None:
    """Print two tables and the cycles, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    sizes = list(_sizes())
    cycles = [" -> ".join(cycle) for cycle in _cycles(_package_imports())]
    with _Trace() as trace, tempfile.TemporaryDirectory() as folder:
        calls = [(name, *trace.of(call)) for name, call in _calls(config.index, Path(folder))]
    told = "\n".join(cycles) or "none"
    text = f"{format_table(sizes, _LINES)}\n\nimport cycles of packages: {told}\n\n{format_table(calls, _CALLS)}"
    config.report(about, text, sizes=sizes, cycles=cycles, calls=calls)


def _files() -> Iterator[tuple[str, Path]]:
    """Yield every source file with the name of its package."""
    for tree in _TREES:
        for file in sorted((ROOT / tree).rglob("*.py")):
            within = file.relative_to(ROOT / tree).parts
            if tree != _TREES[0]:
                yield tree, file
            elif not (ROOT / tree / within[0]).is_symlink():
                yield within[0] if len(within) > 1 else "(top)", file


def _sizes() -> Iterator[tuple[str, int, int, int]]:
    counts: dict[str, list[int]] = {}
    for package, file in _files():
        text = file.read_text("utf-8")
        lines = text.splitlines()
        prose = {number for node in ast.walk(ast.parse(text)) for number in _docstring_lines(node)}
        code = sum(
            bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
            for number, line in enumerate(lines, 1)
        )
        for names in (package, "all" if package == "studies" else "all but studies"):
            total = counts.setdefault(names, [0, 0, 0])
            counts[names] = [total[0] + 1, total[1] + len(lines), total[2] + code]
    for name, (files, all_lines, code) in sorted(counts.items(), key=lambda each: each[1][1], reverse=True):
        yield name, files, all_lines, code


def _docstring_lines(node: ast.AST) -> range:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return range(first.lineno, (first.end_lineno or 0) + 1) if is_text and first is not None else range(0)


def _package_imports() -> dict[str, set[str]]:
    """Return package -> packages that its files import when they run, anywhere in a file."""
    found: dict[str, set[str]] = {}
    for package, file in _files():
        for name in _imported(ast.parse(file.read_text("utf-8"))):
            parts = name.split(".")
            if parts[0] == "diffretriever" and len(parts) > 1 and (ROOT / _TREES[0] / parts[1]).is_dir():
                found.setdefault(package, set()).add(parts[1])
    return {package: targets - {package} for package, targets in found.items()}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and child in node.body):
            yield from _imported(child)


def _cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return one path for each cycle that a walk from every package finds."""
    cycles: dict[frozenset[str], list[str]] = {}

    def walk(path: list[str], seen: set[str]) -> None:
        for target in sorted(imports.get(path[-1], ())):
            if target in path:
                cycle = path[path.index(target) :]
                cycles.setdefault(frozenset(cycle), [*cycle, target])
            elif target not in seen:
                seen.add(target)
                walk([*path, target], seen)

    for package in sorted(imports):
        walk([package], {package})
    return list(cycles.values())


def _calls(index: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    from fastapi.testclient import TestClient

    import diffretriever as dr
    from diffretriever.pipelines.encode import encode_collection
    from diffretriever.schemas.encode import EncodeJob
    from diffretriever.serving.api import make_api
    from diffretriever.serving.guard import Keys
    from tests.serving.serving_cases import local_service

    names = (str(folder / f"index-{number}") for number in range(100))
    corpus = folder / "corpus.jsonl"
    lines = [json.dumps({"_id": f"p{number}", "text": text}) for number, text in enumerate(_TEXTS)]
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    opened, retriever = dr.Index(str(index)), dr.Retriever("diffretriever-minilm")
    client = TestClient(make_api(local_service(str(index)), Keys(), None))
    yield "Index.search", lambda: opened.search("sort a list by key")
    yield "Index.create, 40 texts", lambda: dr.Index.create(next(names), _TEXTS, retriever=retriever, on_ray=False)
    yield (
        "encode_collection, 40 texts",
        lambda: encode_collection(EncodeJob(collection=str(corpus), index=next(names))),
    )
    yield "POST /search", lambda: client.post("/search", json={"query": "sort a list by key"}).raise_for_status()


class _Trace:
    """Traces calls on all threads that start within the block; imports and class bodies do not count."""

    def __init__(self) -> None:
        self._trees = tuple(f"{ROOT / tree}/" for tree in _TREES)
        self._is_watching = False
        self._codes: set[CodeType] = set()
        self._depth = self._hops = 0
        self._last = ""

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def of(self, call: Callable[[], object]) -> tuple[int, int, int, int]:
        """Return the files, functions, depth and hops of the second of two calls."""
        call()
        self._codes, self._depth, self._hops, self._last = set(), 0, 0, ""
        self._is_watching = True
        try:
            call()
        finally:
            self._is_watching = False
        return len({code.co_filename for code in self._codes}), len(self._codes), self._depth, self._hops

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_watching or event != "call" or not self._is_own(frame):
            return
        each: FrameType | None = frame
        depth = 0
        while each is not None:
            depth += self._is_own(each)
            each = each.f_back
        self._codes.add(frame.f_code)
        self._depth = max(self._depth, depth)
        self._hops += frame.f_code.co_filename != self._last
        self._last = frame.f_code.co_filename

    def _is_own(self, frame: FrameType) -> bool:
        code = frame.f_code
        return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename.startswith(self._trees)


if __name__ == "__main__":
    run(StructureBenchmark, main)
