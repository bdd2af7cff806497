"""Every public name has an example in its docstring, and every example prints its output."""

from __future__ import annotations

import doctest
import inspect
import shutil
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import diffretriever as dr
from diffretriever import client
from diffretriever.client import clients
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.schemas.settings import TRUST_VARIABLE
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.serving.opening import open_service
from tests.ports import free_port, status_at

PACKAGE = Path(dr.__file__).parent
MODULES = [
    ".".join([PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for file in sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("*/**/*.py")])
    if ">>>" in file.read_text("utf-8")
]
EXAMPLES = [example for name in MODULES for example in doctest.DocTestFinder().find(import_module(name))]
CORPUS = """
{"id": "roses", "text": "Prune roses in late winter.", "year": 2021}
{"id": "bread", "text": "Feed the sourdough every day.", "year": 2023}
"""
QUERIES = """
{"_id": "q1", "text": "when do I cut roses?"}
{"_id": "q2", "text": "how often is sourdough fed?"}
"""
QRELS = "query-id\tcorpus-id\tscore\nq1\troses\t1\nq2\tbread\t1\n"


@pytest.fixture(scope="module")
def retriever() -> dr.Retriever:
    return dr.Retriever("diffretriever-minilm", device="cpu")


@pytest.fixture(scope="module")
def made(retriever: dr.Retriever, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the BEIR collection `garden` and the index `indexes/garden`."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "garden" / "qrels").mkdir(parents=True)
    (folder / "garden" / "corpus.jsonl").write_text(CORPUS.strip().replace('"id"', '"_id"'))
    (folder / "garden" / "queries.jsonl").write_text(QUERIES.strip())
    (folder / "garden" / "qrels" / "test.tsv").write_text(QRELS)
    dr.Index.create(folder / "indexes" / "garden", folder / "garden", retriever=retriever)
    return folder


@pytest.fixture
def index(made: Path, retriever: dr.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dr.Index:
    """The index, in a copy of that folder, which is the current one."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRUST_VARIABLE, "")
    return dr.Index("indexes/garden", retriever=retriever)


@pytest.fixture(scope="module")
def server(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.SearchClient]:
    """A client of a server of the index, which clients of localhost:8000 reach too."""
    uri = shutil.copytree(made / "indexes" / "garden", tmp_path_factory.mktemp("served") / "garden")
    port, connection = free_port(), clients._connection
    app = make_api(open_service(ServeConfig(index=str(uri), device="cpu")), Keys(), None)
    running = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while status_at(f"http://localhost:{port}/healthz") is None:
        assert thread.is_alive()
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "_connection", lambda url, *rest: connection(url.replace("8000", str(port)), *rest))
        with client.SearchClient() as connected:
            yield connected
    running.should_exit = True
    thread.join()


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.examples], ids=lambda example: example.name)
def test_the_example_prints_its_output(
    example: doctest.DocTest, index: dr.Index, request: pytest.FixtureRequest
) -> None:
    example.globs |= {"dr": dr, "index": index}
    if example.name.startswith(client.__name__):
        example.globs |= {name: getattr(client, name) for name in client.__all__}
        example.globs["client"] = request.getfixturevalue("server")
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_every_public_name_has_an_example() -> None:
    public = [getattr(module, name) for module in (dr, client) for name in module.__all__]
    assert [value.__name__ for value in public if not has_example(value)] == []


def has_example(value: Any) -> bool:
    members = [member for name, member in inspect.getmembers(value) if not name.startswith("_")]
    return any(">>>" in (inspect.getdoc(item) or "") for item in [value, *members])
