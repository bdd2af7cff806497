"""Derived files of fragments: built once, rebuilt when incomplete, and removed with their fragment."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.retriever import MaskedRetriever, PooledRetriever
from diffretriever.search.accelerate import accelerate, missing_files, remove_old
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.sketch import SKETCHES, CandidateIndex
from tests.index.index_cases import compact
from tests.search.sparse_cases import BACKBONE, VOCAB, manifest, representations


def fill(folder: str, retriever: MaskedRetriever | PooledRetriever, vocab_size: int | None) -> PassageIndex:
    """Write two fragments of two passages each."""
    index = PassageIndex.create(f"{folder}/index", manifest(retriever, vocab_size))
    for first in (0, 2):
        texts = text_table([Passage(f"d{first + n}", "", "text") for n in range(2)], "c")
        bags = [{first: 1.0} if vocab_size else {}] * 2
        receipt = write_block(index.uri, join_columns(texts, representations(bags).to_arrow()))
        Committer(index).commit({"key": receipt}, [])
    return index


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return fill(str(tmp_path), MaskedRetriever.model_validate({"backbone": BACKBONE, "budget": "q1p1"}), VOCAB)


def kept(index: PassageIndex, kind: str) -> set[str]:
    return {folder.name for folder in (Path(index.uri) / kind).iterdir()}


@pytest.mark.parametrize("uri", ["disk", "store"])
def test_files_built_after_a_deletion_that_a_restore_undid_are_rebuilt(
    uri: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    folder = str(tmp_path) if uri == "disk" else request.getfixturevalue("bucket")
    index = fill(folder, MaskedRetriever.model_validate({"backbone": BACKBONE, "budget": "q1p1"}), VOCAB)
    before = index.version
    index.delete(["d0"])
    accelerate(AccelerateJob(index=index.uri))
    CandidateIndex.build(index, open_segments(index)[0])
    index = PassageIndex.restore(index.uri, before)
    index.delete(["d1"])
    # The files of the first fragment have one passage, and so has the fragment, but another one.
    assert [len(missing.kinds) for missing in missing_files(index)] == [2]
    accelerate(AccelerateJob(index=index.uri))
    assert not missing_files(index)
    segments, _ = open_segments(index)
    assert [segment.folder.below(SKETCHES).size() is None for segment in segments] == [True, False]


def test_an_index_without_vectors_and_impacts_is_rejected(bm25_index: PassageIndex) -> None:
    with pytest.raises(ValueError, match="neither vectors nor impacts"):
        accelerate(AccelerateJob(index=bm25_index.uri))


@pytest.mark.parametrize("kind", ["codes", "postings"])
def test_files_are_removed_with_the_last_version_of_their_fragment(kind: str, index: PassageIndex) -> None:
    accelerate(AccelerateJob(index=index.uri))
    old = {fragment_key(fragment) for fragment in index.fragments()}
    compact(index)
    new = {fragment_key(fragment) for fragment in index.fragments()}
    accelerate(AccelerateJob(index=index.uri))
    assert kept(index, kind) == old | new, "readers of the version before may still be there"
    compact(index, timedelta(0))
    accelerate(AccelerateJob(index=index.uri))
    assert kept(index, kind) == new


def test_files_of_killed_jobs_are_removed_after_a_day(index: PassageIndex) -> None:
    accelerate(AccelerateJob(index=index.uri))
    left, at_work = (Path(index.uri) / "postings" / name for name in (".left.tmp", ".at-work.tmp"))
    for folder in (left, at_work):
        (folder / "segment").mkdir(parents=True)
    day_ago = left.stat().st_mtime - 25 * 3600
    os.utime(left, (day_ago, day_ago))
    remove_old(index)
    assert (left.exists(), at_work.exists()) == (False, True)


def test_too_many_mapped_files_are_reported(index: PassageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    accelerate(AccelerateJob(index=index.uri))
    monkeypatch.setattr("numpy.memmap", no_more)
    assert len(open_segments(index)[0]) == 2
    monkeypatch.setattr("diffretriever.index.derived._MOST_READ", 0)
    with pytest.raises(ValueError, match=r"max_map_count.*--compact"):
        open_segments(index)
