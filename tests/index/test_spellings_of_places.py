"""`file:` URIs and `~` name local paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.core.files import is_local
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from diffretriever.schemas.inspect import InspectJob
from diffretriever.schemas.locations import plain_location
from tests.index.compressed_cases import manifest
from tests.index.index_cases import ids_of
from tests.index.test_index import block

NAME = "an index ü%41?#"


def uris(path: Path) -> list[str]:
    plain = path.as_uri().removeprefix("file://")
    return [path.as_uri(), f"file://localhost{plain}", f"file:{plain}", f"~/{path.name}"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / NAME


def test_file_uris_name_their_path(place: Path) -> None:
    for uri in uris(place):
        assert plain_location(uri) == str(place)
        assert plain_location(uri.replace("file:", "FILE:")) == str(place)
        assert is_local(uri)
    for same in ("s3://bucket/a%20b", "folder", "/a%20b", "file", "memory://x", "a/~", "~nobody-here/x", ""):
        assert plain_location(same) == same
    assert not is_local("s3://bucket/folder")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file://host/folder", "is a file on the host 'host'"),
        ("file://localhost", "has no absolute path"),
        ("file:///a?b", "write . as %3F"),
        ("file:///a#b", "as %23 in a file URI"),
        ("file:///a%ff", "must be UTF-8"),
        ("file:///a%00", "has no absolute path"),
    ],
)
def test_invalid_file_uris_are_rejected(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_location(uri)
    with pytest.raises(ValueError, match=message):
        InspectJob(index=uri)


def test_all_spellings_of_a_path_open_the_same_index(place: Path) -> None:
    for number, uri in enumerate(uris(place)):
        assert PassageIndex.exists(uri) == (number > 0)
        made = PassageIndex.open(uri) if number else PassageIndex.create(uri, manifest())
        assert made.uri == str(place)
        Committer(made).commit({"key": write_block(uri, block([f"p{number}"]))}, [])
    assert sorted(ids_of(PassageIndex.open(str(place)))) == ["p0", "p1", "p2", "p3"]
    with pytest.raises(ValueError, match="already contains an index"):
        PassageIndex.create(place.as_uri(), manifest())
    assert [path.name for path in place.parent.iterdir()] == [NAME]
