"""Metadata from Python: kept, returned with hits, changed, and filtered by."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

import diffretriever as dr

ROOT = Path(__file__).resolve().parents[2]
NOTES: list[dict[str, Any]] = [
    {"id": "a", "text": "prune roses", "year": 2020, "lang": "en", "score": 1},
    {"id": "b", "text": "roses need sun", "year": 2021, "lang": "de", "day": date(2020, 2, 3)},
    {"id": "c", "text": "the server has no roses", "lang": "en", "score": 0.5},
]


@pytest.fixture
def index(tmp_path: Path) -> dr.Index:
    return dr.Index.create(tmp_path / "notes", NOTES, retriever="bm25")


def test_hits_have_metadata(index: dr.Index) -> None:
    hits = {hit.id: hit.metadata for hit in index.search("roses")}
    assert hits["a"] == {"year": 2020, "lang": "en", "score": 1.0, "day": None}
    assert hits["b"] == {"year": 2021, "lang": "de", "score": None, "day": date(2020, 2, 3)}
    table = index.search("roses").to_pandas().set_index("id")
    assert list(table.columns[5:]) == ["year", "lang", "metadata.score", "day"]
    assert table.loc["b", "lang"] == "de"
    assert index.search("nothing").to_pandas().empty
    assert "\n      year: 2020, lang: en, score: 1.0" in repr(index.search("prune"))
    assert index.metadata == {"year": "int64", "lang": "string", "score": "float64", "day": "date"}


def test_changed_metadata_is_a_change(index: dr.Index) -> None:
    assert index.add(NOTES).already_there == 3
    changed = [{**NOTES[0], "year": 2022}]
    with pytest.raises(ValueError, match="with another text or other metadata"):
        index.add(changed)
    assert index.add(changed, on_existing="replace").replaced == 1
    assert index.search("prune")[0].metadata["year"] == 2022
    summary = index.sync([*NOTES[:2], {**NOTES[2], "lang": "fr"}])
    assert (summary.replaced, summary.already_there, summary.deleted) == (2, 1, 0)
    assert {hit.metadata["lang"] for hit in index.search("roses")} == {"en", "de", "fr"}


def test_what_is_added_has_the_same_columns(index: dr.Index) -> None:
    index.add([{"id": "d", "text": "roses", "year": 7}])
    assert {hit.id: hit.metadata for hit in index.search("roses")}["d"] == {
        "year": 7,
        "lang": None,
        "score": None,
        "day": None,
    }
    with pytest.raises(ValueError, match=r"no column 'yaer': make it anew .*Did you mean 'year'\?"):
        index.add([{"id": "e", "text": "x", "yaer": 1}])
    with pytest.raises(ValueError, match="'year' is string, and int64"):
        index.add([{"id": "e", "text": "x", "year": "1"}])
    with pytest.raises(ValueError, match="has no column 'yaer'"):
        index.add([{"id": "e", "text": "x", "yaer": 1}], metadata="yaer")
    assert index.add([{"id": "e", "text": "x", "yaer": 1}], metadata=[]).encoded == 1


def test_filters(index: dr.Index) -> None:
    assert index.search("roses", filter="year >= 2021").ids == ["b"]
    assert set(index.search("roses", filter="lang = 'en' AND id <> 'a'").ids) == {"c"}
    whole = {hit.id: hit.score for hit in index.search("roses")}
    assert {hit.id: hit.score for hit in index.search("roses", filter="year IS NOT NULL")} == {
        name: whole[name] for name in ("a", "b")
    }
    assert [each.ids for each in index.search(["prune", "sun"], filter="year = 2021")] == [[], ["b"]]
    index.delete("b")
    assert index.search("roses", filter="year >= 2021").ids == []
    with pytest.raises(ValueError, match=r"unknown column 'yaer'. Did you mean 'year'\?"):
        index.search("roses", filter="yaer = 1")
