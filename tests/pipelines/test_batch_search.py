"""Batch search on a local Ray: the same as one search of the whole index, and resumed where it was cut off."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from diffretriever.collections import read_run
from diffretriever.core.ledger import Ledger
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines import batch_search, index_writer
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.search import BatchSearchJob, SearchOptions
from diffretriever.search import open_searcher
from diffretriever.vectors.fusion import FUSION_DEPTH
from tests.locations import local
from tests.pipelines.corpora import WORDS, line, write_corpus
from tests.search.dense_cases import build_codes

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
TEXTS = {f"q{n}": f"{WORDS[n]} {WORDS[n + 3]}" for n in range(7)} | {"p3": "title 3 slot index"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, cluster: None) -> PassageIndex:
    """Of five fragments, all of them with codes, some passages deleted since."""
    folder = tmp_path_factory.mktemp("batch")
    job = EncodeJob(
        collection=str(write_corpus(folder / "corpus", [line(i) for i in range(80)])),
        index=str(folder / "index"),
        retriever="diffretriever-llada",
        backbone=str(checkpoint),
        encoders=1,
        rows_per_block=16,
    )
    with patch.object(index_writer, "compact_index"):
        encode_collection(job)
    made = PassageIndex.open(job.index)
    assert made.contents().fragments == 5
    build_codes(made)
    made.delete(["p7", "p70"])
    return made


@pytest.fixture
def job(index: PassageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchSearchJob:
    """Fused modes search for three queries at a time."""
    monkeypatch.setattr(batch_search, "_HITS_AT_ONCE", 3 * FUSION_DEPTH)
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"_id": i, "text": text}) + "\n" for i, text in TEXTS.items()), "utf-8")
    return BatchSearchJob(
        index=index.uri,
        queries=queries,
        output=tmp_path / "runs",
        top_k=30,
        exclude_self=True,
        encoders=1,
    )


MODES = ("dense", "sparse", "hybrid", "bm25", "dense+sparse+bm25")


def test_runs_equal_those_of_one_search(job: BatchSearchJob) -> None:
    summary = search_batch(job.model_copy(update={"modes": MODES}))
    assert (summary.queries, summary.passages, summary.parts_found) == (8, 78, 0)
    assert summary.parts == 3 * 4, "three rounds of queries, four parts each"
    # A text's vectors differ in the last bits by the batch that it is encoded in, which is a round of queries here.
    searcher = open_searcher(job.index, SearchOptions(index=job.index))
    rounds = [list(TEXTS.values())[start : start + 3] for start in (0, 3, 6)]
    searched = [searcher.search(texts, k=31, modes=MODES) for texts in rounds]
    found = {mode: [hits for each in searched for hits in each[mode]] for mode in MODES}
    assert set(summary.runs) == set(MODES)
    (tag,) = {line.split()[5] for line in (local(job.output) / "dense+sparse+bm25.trec").read_text().splitlines()}
    assert re.fullmatch(r"masked-llada\d*\.q4p4\.dense\+sparse\+bm25", tag)
    for mode, hits in found.items():
        run = read_run(job.output / f"{mode}.trec")
        kept = {q: [hit for hit in ranked if hit[0] != q][:30] for q, ranked in zip(TEXTS, hits, strict=True)}
        # A run says nothing of a query without hits.
        expected = {query: ranked for query, ranked in kept.items() if ranked}
        assert {query: list(ranked.items()) for query, ranked in run.items()} == expected
    assert not list(local(job.output).glob(".parts-*")), "nothing is left but the runs"
    assert (local(job.output) / "search.yaml").is_file()


def test_a_killed_batch_search_resumes(job: BatchSearchJob) -> None:
    put, written = Ledger.put_table, list[str]()

    def dying(ledger: Ledger, name: str, table: pa.Table) -> None:
        if len(written) == 12:
            raise KeyboardInterrupt
        written.append(name)
        put(ledger, name, table)

    with patch.object(Ledger, "put_table", dying), pytest.raises(KeyboardInterrupt):
        search_batch(job)
    assert not list(local(job.output).glob("*.trec"))
    summary = search_batch(job)
    assert summary.parts_found >= 3
    assert summary.parts + summary.parts_found == 12
    resumed = (local(job.output) / "hybrid.trec").read_bytes()
    again = search_batch(job)
    assert (again.parts, again.parts_found) == (12, 0), "a finished job leaves nothing to find"
    assert (local(job.output) / "hybrid.trec").read_bytes() == resumed


def test_bm25_is_not_searched_in_parts(job: BatchSearchJob) -> None:
    summary = search_batch(job.model_copy(update={"modes": ("bm25",)}))
    assert (summary.parts, summary.parts_found, list(summary.runs)) == (0, 0, ["bm25"])
    (best, *_) = read_run(job.output / "bm25.trec")["q0"]
    assert best in dict(open_searcher(job.index).search([TEXTS["q0"]], modes=["bm25"])["bm25"][0])


def test_a_filter_excludes_passages(job: BatchSearchJob) -> None:
    wanted = "id LIKE 'p1%'"
    search_batch(job.model_copy(update={"modes": ("bm25", "dense"), "filter": wanted}))
    searcher = open_searcher(job.index, SearchOptions(index=job.index))
    found = searcher.search([*TEXTS.values()], k=30, modes=("bm25", "dense"), filter=wanted)
    for mode, hits in found.items():
        run = {query: list(ranked.items()) for query, ranked in read_run(job.output / f"{mode}.trec").items()}
        assert run == {query: ranked for query, ranked in zip(TEXTS, hits, strict=True) if ranked}
        assert {passage[:2] for ranked in run.values() for passage, _ in ranked} == {"p1"}


def test_bad_settings_are_rejected_before_the_search(job: BatchSearchJob, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown column 'year'"):
        search_batch(job.model_copy(update={"filter": "year > 1"}))
    with pytest.raises(ValueError, match="either --collection or --queries"):
        BatchSearchJob(index=job.index, output=tmp_path)
    broken = tmp_path / "queries.tsv"
    broken.write_text("q1\tfirst\nq1\tagain\n", "utf-8")
    with pytest.raises(ValueError, match=r"queries.tsv:2: duplicate query id 'q1', first on line 1"):
        search_batch(job.model_copy(update={"queries": broken}))
    broken.write_text("", "utf-8")
    with pytest.raises(ValueError, match="no queries"):
        search_batch(job.model_copy(update={"queries": broken}))
