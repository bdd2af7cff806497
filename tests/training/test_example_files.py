"""All formats give equal examples, and errors name file and line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diffretriever.collections import BadRecord
from diffretriever.training.data import sources
from diffretriever.training.data.examples import Example
from diffretriever.training.data.sources import open_source
from tests.training.example_cases import examples, good, jsonl, tevatron, write_beir

MADE = examples(7)


def as_jsonl(folder: Path) -> Path:
    path = folder / "train.jsonl"
    path.write_text(jsonl(map(tevatron, MADE)), "utf-8")
    return path


def as_gzip(folder: Path) -> Path:
    # Two members, as joined parts of a file are.
    lines = jsonl(map(tevatron, MADE)).encode().splitlines(keepends=True)
    path = folder / "train.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines[:3])) + gzip.compress(b"".join(lines[3:])))
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "train-00000.parquet"
    pq.write_table(pa.Table.from_pylist([tevatron(e) for e in MADE]), path, row_group_size=2)
    return path


def as_folder(folder: Path) -> Path:
    inside = folder / "shards"
    inside.mkdir()
    (inside / "train-0.jsonl").write_text(jsonl(map(tevatron, MADE[:3])), "utf-8")
    pq.write_table(pa.Table.from_pylist([tevatron(e) for e in MADE[3:]]), inside / "train-1.parquet")
    (inside / "dev.jsonl").write_text("not read", "utf-8")
    (inside / "train.md").write_text("not read", "utf-8")
    return inside


@pytest.mark.parametrize("write", [as_jsonl, as_gzip, as_parquet, as_folder])
def test_formats_give_equal_examples(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(str(write(tmp_path)), "train")
    assert good(source.records()) == MADE
    monkeypatch.setattr(sources, "_PIECE_RECORDS", 2)
    assert len(list(source.pieces())) >= 4
    assert good(source.records()) == MADE


def test_a_collection_gives_its_positives(tmp_path: Path) -> None:
    source = open_source(str(write_beir(tmp_path / "beir", MADE)), "train")
    assert good(source.records()) == [Example(e.query_id, e.query, e.positives, ()) for e in MADE]
    with pytest.raises(ValueError, match=r"no split 'dev': set --split to one of: train"):
        open_source(str(tmp_path / "beir"), "dev")


def test_tsv_jsonl_and_parquet_give_equal_examples(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("why\tbecause\tno\r\nwho\tme\n", "utf-8")
    rows = [{"query": "why", "positive": "because", "negatives": ["no"]}, {"query": "who", "positive": "me"}]
    (tmp_path / "a.jsonl").write_text(jsonl(rows), "utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [good(open_source(str(tmp_path / name), "train").records()) for name in ("a.tsv", "a.jsonl", "a.parquet")]
    assert found[0] == found[1] == found[2]
    assert [e.query for e in found[0]] == ["why", "who"]


def test_bad_records_are_told_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 200)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"query": "q", "positive": "p"}\n\n{"query": "q"}\n\xff\n{"query": "' + b"x" * 300 + b'"}\n')
    found = list(open_source(str(path), "train").records())
    assert [(b.file, b.line, b.kind) for b in found if isinstance(b, BadRecord)] == [
        (str(path), 3, "no positive"),
        (str(path), 4, "invalid UTF-8"),
        (str(path), 5, "too long"),
    ]
    pq.write_table(pa.table({"query": ["q", None], "positive": ["p", "p"]}), tmp_path / "x.parquet")
    (_, bad) = open_source(str(tmp_path / "x.parquet"), "train").records()
    assert isinstance(bad, BadRecord)
    assert (bad.file, bad.line, bad.kind) == (str(tmp_path / "x.parquet"), 2, "no query field")


def test_a_judged_passage_that_is_not_there(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", MADE)
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
        corpus.write('{"_id": "empty", "text": ""}\n')
    with (folder / "qrels" / "train.tsv").open("a", encoding="utf-8") as qrels:
        qrels.write("q2\tgone\t1\n")
    found = list(open_source(str(folder), "train").records())
    bad = [record for record in found if isinstance(record, BadRecord)]
    assert [b.kind for b in bad] == ["empty passage", "missing passage"]
    assert "'gone' is judged relevant to 'q2'" in bad[1].reason
    assert bad[0].line == len((folder / "corpus.jsonl").read_text("utf-8").splitlines())
    assert len(found) == len(MADE) + 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.csv", "must end in .jsonl"),
        ("folder", "begin with the split 'train'"),
        ("nothing", "no collection 'nothing'"),
    ],
)
def test_unknown_sources_are_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("a,b", "utf-8")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=message):
        open_source(name, "train")


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("a,b", "utf-8")
    with pytest.raises(ValueError, match=r"x\.parquet: cannot be read as parquet"):
        list(open_source(str(tmp_path / "x.parquet"), "train").records())
