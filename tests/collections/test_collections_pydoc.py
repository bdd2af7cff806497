from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.collections import Collection, Passage, open_collection, scan
from diffretriever.collections.pydoc import build, passages_and_summaries

BODY = "one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture
def collection(pydoc_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(pydoc_cache))
    return open_collection("pydoc")


def test_every_record_is_good_and_sorted(collection: Collection) -> None:
    result = scan(collection, "error", None)
    assert 4_000 < result.n_records < 7_000
    passages = list(result.kept(collection))
    ids = [passage.id for passage in passages]
    assert ids == sorted(ids)
    assert {"textwrap.TextWrapper", "collections.Counter.most_common", "builtins.str.split"} <= set(ids)
    assert all(passage.title == passage.id and len(passage.text.split()) >= 12 for passage in passages)
    assert len({passage.text for passage in passages}) == len(passages)
    assert not any(name.startswith(("test.", "idlelib.", "_pydecimal.")) for name in ids)


def test_it_is_the_same_each_time(collection: Collection, pydoc_cache: Path, tmp_path: Path) -> None:
    build(tmp_path)
    (kept,) = pydoc_cache.iterdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        assert (tmp_path / name).read_bytes() == (kept / name).read_bytes()
    again = open_collection(str(tmp_path))
    assert again.source_state() == collection.source_state()


def test_what_gives_a_passage_and_a_query() -> None:
    docs = {
        "m.asked": f"Find the thing.\n\n{BODY}.",
        "m.short": "Too short to be a passage.",
        "m.only": f"Only a summary {BODY}.",
        "m.twin": f"Find another thing.\n\n{BODY}.",
        "m.shared1": f"Shared summary line.\n\n{BODY} a.",
        "m.shared2": f"shared summary line.\n\n{BODY} b.",
        "m.brief": f"Two words.\n\n{BODY} c.",
        "m.signature": f"signature(a, b) -> int\n\n{BODY} d.",
    }
    passages, summaries = passages_and_summaries(docs)
    assert [passage.id for passage in passages] == [name for name in docs if name not in ("m.short", "m.twin")]
    assert summaries == {"m.asked": "Find the thing."}
    assert passages[0] == Passage("m.asked", "m.asked", f"{BODY}.")
    assert passages[1].text == docs["m.only"]
