"""An index on an object store is searched like one on a disk."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.derived import folders_in
from diffretriever.index.parts import shard_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.search import SearchOptions
from diffretriever.search import open_searcher
from diffretriever.search.accelerate import accelerate, missing_files
from diffretriever.search.dense import open_dense
from diffretriever.search.inspection import inspect
from diffretriever.search.sparse import open_sparse
from diffretriever.serving.snapshots import Snapshots, Version
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations
from tests.cluster.s3 import BUCKET, S3
from tests.search.conftest import PASSAGES, QUERIES, fill
from tests.search.dense_cases import CPU


@pytest.fixture(scope="module", autouse=True)
def _endpoint(s3: S3) -> Iterator[None]:
    with s3.reached():
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "derived"


@pytest.fixture
def stored(encoder: Encoder) -> PassageIndex:
    """Three fragments in a bucket."""
    return fill(encoder, f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture
def local(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    return fill(encoder, str(tmp_path / "index"))


@pytest.fixture(scope="session")
def queries(encoder: Encoder) -> Representations:
    return encoder.encode_queries(QUERIES)


def found(index: PassageIndex, queries: Representations) -> dict[str, Hits]:
    """What is found, by the way that it is found."""
    index.refresh()
    options = SearchOptions(index=index.uri)
    dense, sparse = open_dense(index, options, CPU), open_sparse(index, options)
    return {f"dense {dense.way}": dense.search(queries, 20), f"sparse {sparse.way}": sparse.search(queries, 20)}


def fail(*_: object) -> None:
    raise AssertionError("nothing is to be fetched")


def test_a_store_gives_the_hits_of_a_disk_and_fetches_files_once(
    stored: PassageIndex, local: PassageIndex, queries: Representations, cache: Path
) -> None:
    streams = found(stored, queries)
    assert set(streams) == {"dense stream", "sparse stream"}
    for index in (stored, local):
        done = accelerate(AccelerateJob(index=index.uri)).files
        assert {kind: files.built for kind, files in done.items()} == {"codes": 3, "postings": 3}
        assert all(files.bytes > 0 for files in done.values())
    assert not list(cache.iterdir()), "who makes files need not fetch them"
    assert missing_files(stored) == []
    with patch("diffretriever.index.derived.fetch_file", fail):
        assert accelerate(AccelerateJob(index=stored.uri)).files["codes"].built == 0, "to see what is there is enough"
    hits = found(stored, queries)
    assert list(hits) == ["dense codes", "sparse postings"]
    assert list(hits.values()) == list(streams.values())
    assert hits == found(local, queries), "bit for bit"
    with patch("diffretriever.index.derived.fetch_file", fail):
        assert found(stored, queries) == hits
    shutil.rmtree(cache)
    assert found(stored, queries) == hits, "the cache may go at any time"


def test_verification_of_a_store_equals_that_of_a_disk(stored: PassageIndex, local: PassageIndex, cache: Path) -> None:
    for index in (stored, local):
        fill_report = inspect(index, check=True)
        assert fill_report.codes is not None
        assert (fill_report.codes.fragments, fill_report.codes.bytes) == (0, 0)
        accelerate(AccelerateJob(index=index.uri))
    reports = [inspect(index, check=True) for index in (stored, local)]
    assert reports[0].codes == reports[1].codes
    assert reports[0].postings == reports[1].postings
    assert reports[0].verification == reports[1].verification
    assert reports[0].verification is not None
    assert not reports[0].verification.problems
    (file, *_) = cache.glob("*-*/codes.bin")
    file.write_bytes(b"\x01" * file.stat().st_size)
    damaged = inspect(stored, check=True).verification
    assert damaged is not None
    assert damaged.problems


def test_a_bm25_index_on_a_store_is_built_once_a_version(tmp_path: Path, bm25_index: PassageIndex, cache: Path) -> None:
    stored = PassageIndex.create(f"s3://{BUCKET}/{uuid.uuid4().hex}", bm25_index.manifest)
    Committer(stored).commit({"all": write_block(stored.uri, text_table(PASSAGES, "c"))}, [])
    hits = open_searcher(stored.uri).search(QUERIES)
    assert hits == open_searcher(bm25_index.uri).search(QUERIES), "bit for bit"
    with patch("diffretriever.search.bm25._build", fail):
        assert open_searcher(stored.uri).search(QUERIES) == hits
    assert len(list(cache.glob("*-*/"))) == 1
    stored.delete(["d7"])
    assert open_searcher(stored.uri).search(QUERIES) != hits
    assert folders_in(stored.uri, "bm25") == [f"version-{stored.version}"], "older ones are gone"


def test_a_shard_fetches_only_its_new_fragments(stored: PassageIndex, encoder: Encoder, cache: Path) -> None:
    def fetched() -> int:
        return len(list(cache.glob("*-*/")))

    def owned() -> int:
        stored.refresh()
        return len(shard_fragments(stored, 2)[0])

    accelerate(AccelerateJob(index=stored.uri))
    snapshots = Snapshots(SearchOptions(index=stored.uri), CPU, (0, 2))
    assert snapshots.get(Version.of(stored)).state.fragments == owned()
    assert fetched() == 2 * owned() < 6
    fill(encoder, stored.uri, prefix="n")
    accelerate(AccelerateJob(index=stored.uri))
    state = snapshots.get(Version.of(PassageIndex.open(stored.uri))).state
    assert state.fragments == owned()
    assert fetched() == 2 * owned()
    assert state.mapped_bytes == sum(int(path.name.rpartition("-")[2]) for path in cache.glob("*-*/"))
