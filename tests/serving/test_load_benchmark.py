"""benchmarks.serve.load in a tiny form: a server that works on one request at a time, over HTTP and without Ray."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from benchmarks.serve import load, loops
from benchmarks.serve.load import Judge, LoadBenchmark, main
from benchmarks.serve.loops import Arrival
from diffretriever.collections import Query
from diffretriever.collections.beir import write_beir_folder
from diffretriever.index.table import PassageIndex
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.serving.serving_cases import PASSAGES, QUERIES, local_service

LONG_S = 3600.0
"""Longer than a test may take."""
BOUNDS = {"least_query_slots": 2, "least_candidates": 7}


@contextmanager
def local_server(settings: dict[str, Any], *, haproxy: bool) -> Iterator[str]:
    """Serve in a thread."""
    assert not haproxy
    given = {name: value for name, value in settings.items() if name not in {"index", "threads"}}
    limits = {"timeout_s": LONG_S, "body_s": LONG_S}
    api = make_api(local_service(settings["index"], **given, limits=limits), Keys(), None)
    server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def here(_: str, function: str, **arguments: Any) -> Any:
    """Run what a child would run."""
    found = getattr(loops, function)(**arguments)
    return found if isinstance(found, list) else found.model_dump()


@pytest.fixture
def collection(tmp_path: Path) -> str:
    folder = tmp_path / "collection"
    folder.mkdir()
    queries = [Query(f"q{number}", text) for number, text in enumerate(QUERIES)]
    qrels = {"test": {query.id: {f"d{number}": 1} for number, query in enumerate(queries)}}
    write_beir_folder(folder, PASSAGES, queries, qrels)
    return str(folder)


def test_all_loads_are_measured(
    index: PassageIndex, collection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "serving", local_server)
    monkeypatch.setattr(load, "in_child", here)
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks.serve.load"])
    values = {"index": index.uri, "collection": collection, "seconds": 0.5, "max_ongoing": 1, "haproxy": False}
    config = LoadBenchmark.model_validate({**values, **BOUNDS, "output": tmp_path / "out.json"})
    main(config)
    written = json.loads((tmp_path / "out.json").read_text("utf-8"))
    parts = written["parts"]
    assert [(part["server"], part["load"]) for part in parts] == [
        (server, times) for server in ("as it is", "with bounds", "as it is, again") for times in (1.0, 1.5)
    ]
    assert written["refusing_rate"] > 0
    for part in parts:
        assert part["rate"] == pytest.approx(part["load"] * written["refusing_rate"])
        assert part["errors"] == 0
        assert 0 <= part["refused"] < 1
        assert part["p50_ms"] <= part["p95_ms"]
        # The only request is as many as there may be, so the level is the highest from the first one on.
        assert part["reduced"] == (part["server"] == "with bounds")
        assert 0 <= part["ndcg"] <= 1
        assert 0 <= part["full_ndcg"] <= 1


def test_answers_count_as_often_as_they_are_given() -> None:
    judge = Judge({"a": {"d1": 1}, "b": {"d2": 1}}, ["a", "b"], [["d1"], ["d1", "d2"]])
    answers = [
        Arrival(query=query, status=200, ms=1, hits=hits, is_reduced=True)
        for query, hits in ((0, ["d1"]), (0, ["d2"]), (1, ["d2"]), (1, []))
    ]
    given, full = judge.ndcg(answers)
    assert given == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert full == pytest.approx((1 + 1 + 2 * 0.6309) / 4, abs=1e-4)
