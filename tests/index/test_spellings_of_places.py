"""A `file:` URI is the path it names, and `~` the home folder, wherever a place can be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.backbones.source import resolve_source
from diffretriever.codecs.product import load_codec
from diffretriever.collections import open_collection
from diffretriever.files import is_local, write_bytes
from diffretriever.front.index import Index
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_place
from diffretriever.index.writer import Committer, WriterLock, write_block
from diffretriever.ledger import Ledger
from diffretriever.presets import absolute_source
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.inspect import InspectJob, MaintainJob
from diffretriever.schemas.places import plain_place
from diffretriever.schemas.search import SearchJob
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.search.accelerate import accelerate, missing_files
from diffretriever.studies.reproduction.config import ReproduceJob
from tests.index.compressed_cases import compressed, fill
from tests.index.test_index import add, block, manifest

NAME = "an index ü%41?#"


def uris(path: Path) -> list[str]:
    plain = path.as_uri().removeprefix("file://")
    return [path.as_uri(), f"file://localhost{plain}", f"file:{plain}", f"~/{path.name}"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / NAME


def test_every_spelling_is_the_path(place: Path) -> None:
    for uri in uris(place):
        assert plain_place(uri) == str(place)
        assert plain_place(uri.replace("file:", "FILE:")) == str(place)
        assert is_local(uri)
    for same in ("s3://bucket/a%20b", "folder", "/a%20b", "file", "memory://x", "a/~", "~nobody-here/x", ""):
        assert plain_place(same) == same
    assert not is_local("s3://bucket/folder")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file://host/folder", "names a file of the machine 'host'"),
        ("file://localhost", "names no absolute path"),
        ("file:///a?b", "write . as %3F"),
        ("file:///a#b", "as %23 in a file URI"),
        ("file:///a%ff", "must be UTF-8"),
        ("file:///a%00", "names no absolute path"),
    ],
)
def test_what_names_no_path_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_place(uri)
    with pytest.raises(ValueError, match=message):
        InspectJob(index=uri)


def test_one_index_under_every_spelling(place: Path) -> None:
    for number, uri in enumerate(uris(place)):
        assert PassageIndex.exists(uri) == (number > 0)
        made = PassageIndex.open(uri) if number else PassageIndex.create(uri, manifest())
        assert made.uri == str(place)
        Committer(made).commit({"key": write_block(uri, block([f"p{number}"]))}, [])
    assert sorted(PassageIndex.open(str(place)).digests()) == ["p0", "p1", "p2", "p3"]
    with pytest.raises(ValueError, match="already holds an index"):
        PassageIndex.create(place.as_uri(), manifest())
    assert [path.name for path in place.parent.iterdir()] == [NAME]


def test_all_of_an_index_lies_under_the_home_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for given in ("~/one", Path("~/one")):
        Index.create(given, ["alpha beta"], retriever="bm25").search("alpha")
    found = {path.name for path in place.parent.glob("one/*")}
    assert {"passages.lance", ".writer.lock", "encode.yaml", "bm25"} <= found
    assert not [*elsewhere.iterdir()], "nothing lies in a folder named ~"


def test_the_lock_is_one_under_every_spelling(place: Path) -> None:
    for uri in (*uris(place), str(place)):
        with WriterLock(uri):
            for other in (*uris(place), str(place)):
                with pytest.raises(ValueError, match=r"another job .* is writing"), WriterLock(other):
                    pass


def test_codes_can_be_made(place: Path) -> None:
    index = PassageIndex.create(place.as_uri(), manifest())
    add(index, ["a", "b"])
    assert missing_files(index)
    accelerate(AccelerateJob(index=place.as_uri()))
    assert missing_files(PassageIndex.open(str(place))) == []


def test_a_codec_is_found(place: Path) -> None:
    made = compressed(fill(place.as_uri(), 20, 20), "product4")
    assert made.manifest.codec is not None
    digest = made.manifest.codec.digest
    assert load_codec(codec_place(place.as_uri(), digest)).digest == digest
    assert (place / "codecs" / f"{digest}.safetensors").is_file()


def test_files_are_written_there(place: Path) -> None:
    write_bytes(f"{place.as_uri()}/deep/file", b"1")
    assert (place / "deep" / "file").read_bytes() == b"1"
    work = Ledger(f"{place.as_uri()}/work")
    work.put("name", b"2")
    assert work.get("name") == b"2" == (place / "work" / "name").read_bytes()
    work.clear()
    assert not (place / "work").exists()


def test_a_collection_is_found(place: Path) -> None:
    place.mkdir()
    (place / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n')
    for uri in uris(place):
        assert open_collection(uri).place() == str(place / "corpus.jsonl")


def test_a_model_is_found(place: Path) -> None:
    place.mkdir()
    for uri in uris(place):
        assert absolute_source(uri) == str(place)
        assert resolve_source(uri) == place


def test_configs_hold_the_path(place: Path) -> None:
    for uri in uris(place):
        for job in (InspectJob, MaintainJob, AccelerateJob):
            assert job(index=uri).index == str(place)
        assert MaintainJob(index=uri, delete_from=f"{uri}/ids").delete_from == place / "ids"
        assert EvaluateJob(runs=(uri,), qrels=uri, output=uri).qrels == place
        assert SearchJob(index=uri, query=uri).index == str(place)
        assert SearchJob(index=uri, query=uri).query == uri
        assert ServeConfig(index=uri).index == str(place)
        told = ["--collection", "pydoc", "--index", uri, "--on-bad-input", "quarantine", "--quarantine", f"{uri}/bad"]
        encode = EncodeJob.from_command_line(told)
        assert (encode.index, encode.quarantine) == (str(place), place / "bad")
        assert EvaluateJob(index=uri, collection="pydoc", output=uri).output == place


def test_a_job_file_is_found(place: Path) -> None:
    place.write_text("index: elsewhere")
    for uri in uris(place):
        assert InspectJob.from_command_line(["--config", uri]).index == "elsewhere"


def test_folders_by_name_hold_the_path(place: Path) -> None:
    place.mkdir()
    for uri in uris(place):
        assert ReproduceJob(output=uri, backbones={"minilm": uri}).backbones == {"minilm": place}


def test_jobs_take_it_for_a_path(place: Path, jobs_path: None) -> None:
    from _entry import absolute_place

    for uri in uris(place):
        assert absolute_place(uri, "--index") == str(place)
    assert absolute_place("s3://bucket/folder", "--index") == "s3://bucket/folder"
