from __future__ import annotations

import gzip
import hashlib
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

from diffretriever.collections import Passage, Query, open_collection, scan
from diffretriever.collections import beir as datasets
from diffretriever.collections.base import read_queries


def zipped(folder: Path, target: Path, inside: str = "tiny") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, f"{inside}/{path.relative_to(folder)}")
    return target


def gzip_all(folder: Path) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


@pytest.mark.parametrize("form", ["folder", "gz", "zip"])
def test_beir(beir_folder: Path, tmp_path: Path, form: str) -> None:
    source = beir_folder
    if form == "gz":
        gzip_all(beir_folder)
    if form == "zip":
        source = zipped(beir_folder, tmp_path / "tiny.zip")
    collection = pickle.loads(pickle.dumps(open_collection(f"{source}/" if form == "folder" else str(source))))
    assert collection.name == "tiny"
    assert list(collection.records()) == [Passage(f"p{i}", f"Title {i}", f"Text {i}") for i in range(4)]
    assert collection.splits() == ["test", "train"]
    assert collection.queries("test") == [Query("q2", "query 2"), Query("q0", "query 0")]
    assert collection.qrels("test") == {"q0": {"p0": 1}, "q2": {"p3": 2, "p1": 0}}
    assert collection.qrels("train") == {"q1": {"p1": 1}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"_id": "q0", "text": "a"}\n{\n', r"queries\.jsonl:2: malformed JSON"),
        ('{"_id": "q0", "text": " "}\n', r"queries\.jsonl:1: empty query"),
        ('{"_id": "q0", "text": "a"}\n\n{"_id": "q0", "text": "b"}\n', r":3: duplicate query id 'q0', first on line 1"),
        ('{"query_id": "q0", "query": "a"}\n', r"1 queries judged in split 'test' are not here, for example 'q2'"),
    ],
)
def test_invalid_queries_are_rejected(beir_folder: Path, content: str, message: str) -> None:
    (beir_folder / "queries.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        open_collection(str(beir_folder)).queries("test")


def test_the_source_state_changes_only_with_the_corpus(beir_folder: Path) -> None:
    collection = open_collection(str(beir_folder))
    before = collection.source_state()
    (beir_folder / "queries.jsonl").write_text("")
    assert collection.source_state() == before == open_collection(str(beir_folder)).source_state()
    (beir_folder / "corpus.jsonl").write_text('{"id": "new", "text": "x"}\n')
    assert collection.source_state() != before


def test_messages_show_relative_paths(beir_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (beir_folder / "corpus.jsonl").write_text("{\n")
    zipped(beir_folder, tmp_path / "tiny.zip")
    monkeypatch.chdir(tmp_path)
    folder, archive = open_collection("tiny"), open_collection("tiny.zip")
    monkeypatch.chdir("/")
    with pytest.raises(ValueError, match=r"\n  tiny/corpus\.jsonl:1: malformed"):
        scan(folder, "error", None)
    with pytest.raises(ValueError, match=r"\n  tiny\.zip/tiny/corpus\.jsonl:1: malformed"):
        scan(archive, "error", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no collection ''"),
        ("scifct", "Did you mean 'scifact'"),
        ("pydocs", "Did you mean 'pydoc'"),
        ("zzzzz", "Known: arguana, .*pydoc"),
        ("empty", "neither corpus.jsonl"),
        ("a.pdf", "must end in .zip, .jsonl"),
        ("no.zip", "cannot be unpacked: File is not a zip file"),
    ],
)
def test_unknown_sources_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("a.pdf").touch()
    Path("no.zip").write_bytes(b"no")
    with pytest.raises(ValueError, match=message):
        open_collection(source)


def test_a_zip_is_unpacked_once_per_change(beir_folder: Path, tmp_path: Path, cache: Path) -> None:
    path = zipped(beir_folder, tmp_path / "z.zip")
    state = open_collection(str(path)).source_state()
    unpacked = sorted((cache / "unpacked").iterdir())
    assert open_collection(str(path)).source_state() == state
    assert sorted((cache / "unpacked").iterdir()) == unpacked
    shutil.rmtree(cache)
    assert open_collection(str(path)).source_state() == state
    (beir_folder / "corpus.jsonl").write_text('{"id": "new", "text": "x"}\n')
    zipped(beir_folder, path)
    assert list(open_collection(str(path)).records()) == [Passage("new", "", "x")]
    assert len(list((cache / "unpacked").iterdir())) == 2


def test_a_damaged_zip_is_rejected(beir_folder: Path, tmp_path: Path, cache: Path) -> None:
    path = zipped(beir_folder, tmp_path / "bad.zip")
    path.write_bytes(path.read_bytes().replace(b"Title 2", b"Title 9"))
    with pytest.raises(ValueError, match="cannot be unpacked: Bad CRC"):
        open_collection(str(path))
    assert list((cache / "unpacked").iterdir()) == []


@pytest.fixture
def mirror(tmp_path: Path, beir_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives of `scifact` and a forum of cqadupstack."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setattr(datasets, "BASE_URL", folder.as_uri())
    for name, inside in (("scifact", "scifact"), ("cqadupstack", "cqadupstack/gis")):
        content = zipped(beir_folder, folder / f"{name}.zip", inside).read_bytes()
        monkeypatch.setitem(datasets.ARCHIVE_MD5, name, hashlib.md5(content).hexdigest())
    return folder


@pytest.mark.parametrize("name", ["scifact", "cqadupstack-gis"])
def test_a_named_collection_is_downloaded_once(mirror: Path, name: str) -> None:
    assert open_collection(name).splits() == ["test", "train"]
    shutil.rmtree(mirror)
    collection = open_collection(name)
    assert collection.name == name
    assert len(list(collection.records())) == 4


def test_a_failed_download_leaves_no_file(mirror: Path, cache: Path) -> None:
    path = mirror / "scifact.zip"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"MD5 is \w+, not the published"):
        open_collection("scifact")
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot download .*scifact\.zip: .*Where there is no network"):
        open_collection("scifact")
    assert list((cache / "downloads").iterdir()) == []


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_link_has_the_format_of_its_target(name: str, tmp_path: Path) -> None:
    text = b'{"_id": "d1", "text": "one"}\n'
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (tmp_path / "link").symlink_to(tmp_path / name)
    assert [query.text for query in read_queries(tmp_path / "link")] == ["one"]
    collection = open_collection(str(tmp_path / "link"))
    assert collection.name == "corpus"
    assert [passage.id for passage in collection.records() if isinstance(passage, Passage)] == ["d1"]
