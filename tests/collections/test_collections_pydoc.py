from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.collections import Collection, open_collection, scan
from diffretriever.collections.pydoc import build


@pytest.fixture
def collection(pydoc_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(pydoc_cache))
    return open_collection("pydoc")


def test_records_are_valid_and_sorted(collection: Collection) -> None:
    result = scan(collection, "error", None)
    assert 4_000 < result.n_records < 7_000
    passages = list(result.kept(collection))
    ids = [passage.id for passage in passages]
    assert ids == sorted(ids)
    assert {"textwrap.TextWrapper", "collections.Counter.most_common", "builtins.str.split"} <= set(ids)
    assert all(passage.title == passage.id and len(passage.text.split()) >= 12 for passage in passages)
    assert len({passage.text for passage in passages}) == len(passages)
    assert not any(name.startswith(("test.", "idlelib.", "_pydecimal.")) for name in ids)


def test_builds_are_identical(collection: Collection, pydoc_cache: Path, tmp_path: Path) -> None:
    build(tmp_path)
    (cached,) = pydoc_cache.iterdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        assert (tmp_path / name).read_bytes() == (cached / name).read_bytes()
    assert open_collection(str(tmp_path)).source_state() == collection.source_state()
