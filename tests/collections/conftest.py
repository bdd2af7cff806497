from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diffretriever.collections import Collection, open_collection

Corpus = Callable[[bytes], Collection]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """A corpus file with the given bytes."""

    def opened(content: bytes) -> Collection:
        path = tmp_path / "corpus.jsonl"
        path.write_bytes(content)
        return open_collection(str(path))

    return opened


@pytest.fixture
def beir_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"p{i}", "title": f"Title {i}", "text": f"Text {i}"} for i in range(4)]
    queries = [{"_id": f"q{i}", "text": f"query {i}", "metadata": {}} for i in (2, 0, 1)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(p) + "\n" for p in passages))
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tp0\t1\nq2\tp3\t2\nq2\tp1\t0\n")
    (folder / "qrels" / "train.tsv").write_text("q1 0 p1 1\n")
    return folder


@pytest.fixture(scope="session")
def pydoc_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pydoc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIFFRETRIEVER_CACHE", str(folder))
        open_collection("pydoc")
    return folder
