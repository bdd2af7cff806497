"""Collections, queries, runs, judgements and quarantines on an object store."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.collections import open_collection, read_qrels, read_queries, scan, set_aside
from diffretriever.collections.quarantine import own_file
from diffretriever.core.files import files_in, read_text, remove, write_bytes, write_text
from diffretriever.schemas.locations import StorePath
from tests.collections.test_quarantine import beir_folder


def put_folder(folder: Path, uri: str) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            write_bytes(f"{uri}/{file.relative_to(folder).as_posix()}", file.read_bytes())


@pytest.fixture
def beir(tmp_path: Path, bucket: str) -> str:
    uri = f"{bucket}/data/tiny"
    put_folder(beir_folder(tmp_path / "tiny", 2), uri)
    return uri


def test_a_beir_folder_on_a_store_equals_a_local_one(beir: str, tmp_path: Path) -> None:
    remote, local = open_collection(f"{beir}/"), open_collection(str(tmp_path / "tiny"))
    assert remote.name == local.name == "tiny"
    assert remote.splits() == ["test"]
    assert remote.queries("test") == local.queries("test")
    assert remote.qrels("test") == local.qrels("test")
    assert [getattr(record, "reason", record) for record in remote.records()] == [
        getattr(record, "reason", record) for record in local.records()
    ]
    assert remote.location() == f"{beir}/corpus.jsonl"
    assert f"{beir}/corpus.jsonl:2: malformed JSON" in [str(bad) for bad in remote.records()][1]
    assert list(pickle.loads(pickle.dumps(remote)).records()) == list(remote.records())
    state = remote.source_state()
    write_text(f"{beir}/corpus.jsonl", read_text(f"{beir}/corpus.jsonl") + "\n")
    assert remote.source_state() != state


def test_an_msmarco_folder_and_single_files_on_a_store(bucket: str) -> None:
    uri = f"{bucket}/marco"
    write_bytes(f"{uri}/collection.tsv.gz", gzip.compress(b"1\tone\n2\ttwo\n"))
    write_text(f"{uri}/queries.dev.tsv", "q\twhich?\n")
    write_text(f"{uri}/qrels.dev.tsv", "q 0 1 1\n")
    write_text(f"{uri}/qrels.lonely.tsv", "q 0 1 1\n")
    folder = open_collection(uri)
    assert folder.splits() == ["dev"]
    assert [passage.id for passage in folder.records()] == ["1", "2"]  # type: ignore[union-attr]
    assert folder.qrels("dev") == {"q": {"1": 1}} == read_qrels(StorePath(f"{uri}/qrels.dev.tsv"))
    file = open_collection(f"{uri}/collection.tsv.gz")
    assert (file.name, file.splits()) == ("collection", [])
    assert list(file.records()) == list(folder.records())
    assert [query.id for query in read_queries(StorePath(f"{uri}/queries.dev.tsv"))] == ["q"]
    write_bytes(f"{uri}/broken.jsonl.gz", gzip.compress(b"1\tone\n" * 1000)[:-20])
    with pytest.raises(ValueError, match=rf"{uri}/broken.jsonl.gz: damaged gzip data"):
        list(open_collection(f"{uri}/broken.jsonl.gz").records())


def test_a_corpus_is_streamed(bucket: str) -> None:
    lines = "".join(json.dumps({"_id": str(number), "text": "x" * 100}) + "\n" for number in range(10_000))
    write_text(f"{bucket}/corpus.jsonl", lines)
    collection = open_collection(f"{bucket}/corpus.jsonl")
    with patch("diffretriever.core.files._READ_BYTES", 1 << 16):
        records = collection.records()
        assert next(records).id == "0"  # type: ignore[union-attr]
        remove(f"{bucket}/corpus.jsonl")
        with pytest.raises((ValueError, FileNotFoundError), match=r"corpus.jsonl"):
            list(records)


def test_each_collection_has_a_quarantine_on_a_store(beir: str, tmp_path: Path, bucket: str) -> None:
    put_folder(beir_folder(tmp_path / "b" / "tiny", 1), f"{bucket}/other/tiny")
    one, other = open_collection(beir), open_collection(f"{bucket}/other/tiny")
    folder = StorePath(f"{bucket}/index/quarantine")
    files = {collection.location(): own_file(folder, collection) for collection in (one, other)}
    assert len(set(files.values())) == 2
    for collection in (one, other, one):
        scan(collection, "quarantine", files[collection.location()])
    set_aside(one, ["a"], "not finite: so", files[one.location()])
    kept = [json.loads(line) for line in read_text(files[one.location()]).splitlines()]
    assert [entry["reason"].partition(":")[0] for entry in kept] == ["malformed JSON", "malformed JSON", "not finite"]
    assert {entry["source"] for entry in kept} == {one.location()}
    assert len(read_text(files[other.location()]).splitlines()) == 1
    assert len(files_in(folder)) == 2
