"""The figures of the house: how large the source is, how its rooms hang together, how many files one thing crosses.

    python -m benchmarks.house [--root DIR] [--json] [--no-run]

A room is a folder of `platform/`, `schemas/`, `jobs/` or `serve/` with Python files. The first figures are read from
the source alone:

- an arrow is a pair of rooms of which one imports the other, anywhere in a file, imports for type checkers left out;
- a circle is a set of files, or of rooms, that all reach each other by imports. A package's `__init__.py` counts where
  something is imported from it, not where only a module below it is.

The others are counted while a tiny random model runs in this process. A file counts if one of its functions ran between
beginning and end, on any thread; all of it has run once before, so that loading and importing do not count:

- a passage: from the collection's file through scan, block, preparation, encoder, fragment and commit, as workers and
  driver of `jobs/encode_beir.py` call them, without Ray between them;
- an exact dense query: from `DenseSearch.search` by codes to its hits;
- a request: `POST /search`, from the HTTP interface to its answer, encoder and index in the same process, without Ray
  Serve.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import statistics
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks import ROOT

_TREES = ("platform", "schemas", "jobs", "serve")
_PASSAGES = 8
Edges = set[tuple[str, str]]


def source_figures(root: Path) -> tuple[dict[str, float], dict[str, list[list[str]]]]:
    """Return what is read from the source below `root`: the figures, and who is in each circle."""
    files = {str(file.relative_to(root)): file for tree in _TREES for file in sorted((root / tree).rglob("*.py"))}
    lengths = sorted(len(file.read_text("utf-8").splitlines()) for file in files.values())
    modules = {_module(name): name for name in files}
    found = {name: list(_imports(ast.parse(file.read_text("utf-8")), modules)) for name, file in files.items()}
    running = {(name, target) for name, targets in found.items() for target, is_type in targets if not is_type}
    every = {(name, target) for name, targets in found.items() for target, _ in targets}
    circles = {
        "circles of files": _circles(running),
        "circles of files, with imports for type checkers": _circles(every),
        "circles of rooms": _circles(_between_rooms(running)),
        "circles of rooms, with imports for type checkers": _circles(_between_rooms(every)),
    }
    figures = {
        "rooms": len({_room(name) for name in files}),
        "files": len(files),
        "lines": sum(lengths),
        "lines of a file, median": statistics.median(lengths),
        "lines of a file, 90th percentile": statistics.quantiles(lengths, n=10, method="inclusive")[8],
        "lines of a file, most": lengths[-1],
        "arrows between rooms": len(_between_rooms(running)),
        **{name: len(found) for name, found in circles.items()},
    }
    return figures, circles


def _room(name: str) -> str:
    return str(Path(name).parent)


def _module(name: str) -> str:
    """Return what a file is imported as: `schemas` and `serve` within the package, jobs beside each other."""
    parts = Path(name).with_suffix("").parts
    inside = parts[1:] if parts[0] in {"platform", "jobs"} else ("diffretriever", *parts)
    return ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def _imports(node: ast.AST, modules: Mapping[str, str], *, is_type: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the project's files that are imported below a node, and whether only for type checkers."""
    if isinstance(node, ast.Import):
        yield from ((modules[alias.name], is_type) for alias in node.names if alias.name in modules)
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            target = modules.get(f"{node.module}.{alias.name}") or modules.get(node.module)
            if target:
                yield target, is_type
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and child in node.body
        yield from _imports(child, modules, is_type=is_type or guarded)


def _between_rooms(edges: Edges) -> Edges:
    rooms = {(_room(name), _room(target)) for name, target in edges}
    return {(room, target) for room, target in rooms if room != target}


def _circles(edges: Edges) -> list[list[str]]:
    """Return the sets of more than one node that all reach each other."""
    after: dict[str, set[str]] = {}
    for name, target in edges:
        after.setdefault(name, set()).add(target)
    reached = {name: _reached(name, after) for name in after}
    circles = {frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in after}
    return sorted(sorted(circle) for circle in circles if len(circle) > 1)


def _reached(name: str, after: Mapping[str, set[str]]) -> set[str]:
    reached, waiting = set[str](), [name]
    while waiting:
        for target in after.get(waiting.pop(), ()):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


class Crossed:
    """The project's files in which a function runs while a piece of work does; imports and class bodies do not count.

    To be entered before the threads that are to be watched are made.
    """

    def __init__(self, root: Path) -> None:
        """Watch files of the project at `root`."""
        self._trees = tuple(f"{root / tree}/" for tree in _TREES)
        self._root = root
        self._is_watching = False
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)
        sys.setprofile(self._before)

    def by(self, work: Callable[[], object]) -> list[str]:
        """Do the work twice, and return the files that the second time crosses, relative to the root."""
        work()
        self._seen.clear()
        self._is_watching = True
        try:
            work()
        finally:
            self._is_watching = False
        return sorted(str(Path(file).resolve().relative_to(self._root)) for file in self._seen)

    def _note(self, frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        is_function = event == "call" and code.co_flags & inspect.CO_OPTIMIZED
        if self._is_watching and is_function and code.co_filename.startswith(self._trees):
            self._seen.add(code.co_filename)


def crossed_files(root: Path) -> dict[str, list[str]]:
    """Return the files that a passage, an exact dense query and a request cross."""
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    # Watching comes first, so that every thread is watched.
    with Crossed(root) as crossed, tempfile.TemporaryDirectory() as folder:
        retriever = _random_retriever(Path(folder))
        uris = [str(Path(folder) / name) for name in ("first", "second")]
        passage = crossed.by(_encoding(Path(folder), retriever, uris))
        return {
            "a passage": sorted({*passage, "jobs/encode_beir.py"}),
            "an exact dense query": crossed.by(_query(uris[0])),
            "a request": crossed.by(_request(uris[0])),
        }


def _random_retriever(folder: Path) -> Any:
    from diffretriever.presets import load_retriever
    from diffretriever.random_models.checkpoints import write_random_checkpoint

    retriever: Any = load_retriever("diffretriever-dream", str(write_random_checkpoint("dream", folder / "dream")))
    return retriever.model_copy(update={"backbone": retriever.backbone.model_copy(update={"dtype": "float32"})})


def _encoding(folder: Path, retriever: Any, uris: list[str]) -> Callable[[], object]:
    """Return what encodes a collection into the next of these indexes, by the stages that an encode job has."""
    from diffretriever.collections import open_collection, scan
    from diffretriever.collections.keys import PassageSelection
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import manifest_of
    from diffretriever.index.table import PassageIndex
    from diffretriever.pipelines.blocks import EncodeBlocks, EncoderStart, passage_blocks, prepare_blocks
    from diffretriever.pipelines.encode import committed
    from diffretriever.schemas.encode import EncodeJob

    corpus = folder / "corpus.jsonl"
    lines = [json.dumps({"_id": f"p{i}", "title": "A title", "text": f"Some text {i}"}) for i in range(_PASSAGES)]
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    text, manifest = retriever.model_dump_json(), manifest_of(load_encoder(retriever, "cpu"))
    budget = retriever.max_vectors("passage")
    start = EncoderStart(text, manifest.weights, "cpu", 1, tokenizer=manifest.tokenizer)
    jobs = [EncodeJob(collection=str(corpus), retriever="", index=uri) for uri in uris]
    begun = [(PassageIndex.create(uri, manifest), EncodeBlocks(start, {uri: budget})) for uri in uris]
    places = iter(zip(jobs, begun, strict=True))

    def work() -> None:
        job, (index, encode) = next(places)
        collection = open_collection(str(corpus))
        selection = PassageSelection(job, [index.keys()])
        scanned = scan(collection, "error", None, choose=selection)
        blocks = passage_blocks(scanned.kept(collection), collection.name, 4)
        prepared = (rows for block in blocks for rows in prepare_blocks(block, text))
        receipts = (row for rows in prepared for done in encode(rows) for row in done.to_pylist())
        assert sum(len(receipt["ids"]) for receipt in committed(receipts, [index], selection.present, [])) == _PASSAGES

    return work


def _query(uri: str) -> Callable[[], object]:
    from diffretriever.index.table import PassageIndex
    from diffretriever.search import open_searcher
    from diffretriever.search.dense.codes import build_codes

    build_codes(PassageIndex.open(uri))
    searcher: Any = open_searcher(uri)
    queries = searcher.encoder.encode_queries(["some text"])
    return lambda: searcher.dense.search(queries, 3)


def _request(uri: str) -> Callable[[], object]:
    from fastapi.testclient import TestClient

    from diffretriever.serving.api import make_api
    from diffretriever.serving.guard import Keys
    from tests.serving.serving_cases import local_service

    client = TestClient(make_api(local_service(uri), Keys(), None))

    def work() -> None:
        answer = client.post("/search", json={"query": "some text"})
        assert answer.status_code == 200, answer.text

    return work


def main() -> None:
    """Print the figures as a table or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="root of the source to read; only this one can be run")
    parser.add_argument("--json", action="store_true", help="print JSON, with the names of the files that are crossed")
    parser.add_argument("--no-run", action="store_true", help="read the source and run nothing")
    options = parser.parse_args()
    figures, circles = source_figures(options.root)
    crossed = {} if options.no_run or options.root.resolve() != ROOT else crossed_files(ROOT)
    if options.json:
        print(json.dumps({**figures, "circles": circles, "crossed": crossed}, indent=2))
        return
    for what, files in crossed.items():
        figures[f"files that {what} crosses"] = len(files)
    if crossed:
        figures["of these in serving/"] = sum("/serving/" in file for file in crossed["a request"])
    for name, value in figures.items():
        print(f"{name:50} {value:9,.0f}")


if __name__ == "__main__":
    main()
