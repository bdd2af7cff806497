"""Jobs whose corpus, model, index and outputs all lie on an object store, nothing of them on this machine's disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diffretriever.collections import Passage, open_collection, read_qrels, read_run
from diffretriever.core.files import exists, files_in, read_bytes, read_text, write_bytes, write_text
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.mining import mine_negatives
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.evaluate import EvaluateJob, EvaluationReport
from diffretriever.schemas.locations import parse_location
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.search import BatchSearchJob
from diffretriever.schemas.training_data import MineNegativesJob
from tests.pipelines.corpora import line, write_corpus


def put_folder(folder: Path, uri: str) -> str:
    for file in folder.rglob("*"):
        if file.is_file():
            write_bytes(f"{uri}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return uri


@pytest.fixture
def corpus(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A BEIR folder with two bad records; the current folder is empty, and stays so."""
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    lines = [*(line(number) for number in range(40)), "{broken", line(3)]
    return put_folder(write_corpus(tmp_path / "corpus", lines), f"{bucket}/data/tiny")


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_encoding_search_and_evaluation_on_a_store(corpus: str, bucket: str, checkpoint: Path, tmp_path: Path) -> None:
    job = EncodeJob(
        collection=corpus,
        index=f"{bucket}/index",
        retriever="diffretriever-llada",
        backbone=put_folder(checkpoint, f"{bucket}/models/llada"),
        on_bad_input="quarantine",
        encoders=1,
        rows_per_block=16,
    )
    summary = encode_collection(job)
    assert (summary.encoded, summary.rows, summary.bad) == (40, 40, 2)
    assert summary.quarantine is not None
    assert summary.quarantine.startswith(f"{bucket}/index/quarantine/tiny-")
    reasons = [json.loads(entry)["reason"] for entry in read_text(summary.quarantine).splitlines()]
    assert [reason.partition(":")[0] for reason in reasons] == ["malformed JSON", "duplicate id"]
    assert "encode.yaml" in [info.base_name for info in files_in(job.index)]
    assert PassageIndex.open(job.index).manifest.retriever.backbone.source == f"{bucket}/models/llada"  # type: ignore[union-attr]
    assert files_in(f"{job.index}/.writer.lease") == []

    write_text(f"{bucket}/queries.tsv", "q\tmasked slot\nr\tquery index\n")
    search = BatchSearchJob(
        index=job.index,
        queries=f"{bucket}/queries.tsv",
        output=f"{bucket}/runs",
        top_k=5,
        encoders=1,
    )
    found = search_batch(search)
    assert found.runs["dense"] == f"{bucket}/runs/dense.trec"
    assert {query: len(hits) for query, hits in read_run(parse_location(found.runs["hybrid"])).items()} == {
        "q": 5,
        "r": 5,
    }
    assert exists(f"{bucket}/runs/search.yaml")
    assert sorted(info.base_name for info in files_in(f"{bucket}/runs", deep=True)) == [
        *("dense.trec", "hybrid.trec", "search.yaml", "sparse.trec")
    ]

    output = parse_location(f"{bucket}/evaluation")
    results = evaluate_job(EvaluateJob(index=job.index, collection=corpus, output=output), "the command")
    report = EvaluationReport.model_validate_json(read_text(output / "metrics.json"))
    assert report.measures["dense"] == results["dense"].mean
    assert set(read_run(output / "dense.trec")) == set(read_qrels(parse_location(f"{corpus}/qrels/test.tsv")))
    rescored = EvaluateJob(
        runs=(found.runs["dense"],), qrels=f"{corpus}/qrels/test.tsv", output=f"{bucket}/again", measures=("P@1",)
    )
    assert evaluate_job(rescored, "the command")["dense"].mean["P@1"] in (0.0, 1.0)
    assert list((tmp_path / "here").iterdir()) == []


def test_mining_on_a_store(corpus: str, bucket: str) -> None:
    index = PassageIndex.create(f"{bucket}/bm25", bm25_manifest(Bm25Retriever()))
    passages = [record for record in open_collection(corpus).records() if isinstance(record, Passage)][:40]
    Committer(index).commit({"all": write_block(index.uri, text_table(passages, "tiny"))}, [])
    job = MineNegativesJob(
        source=corpus,
        split="test",
        index=index.uri,
        output=f"{bucket}/mined.jsonl.gz",
        depth=20,
        negatives=5,
        on_bad_input="quarantine",
    )
    made = mine_negatives(job)
    assert (made.queries, made.negatives) == (1, 5)
    (found,) = gzip.decompress(read_bytes(job.output)).splitlines()
    assert len(json.loads(found)["negative_passages"]) == 5
    assert len(read_text(f"{job.output}.quarantine.jsonl").splitlines()) == 1
    assert mine_negatives(job) == made
    with pytest.raises(ValueError, match=r"mined.jsonl.gz was mined otherwise"):
        mine_negatives(job.model_copy(update={"depth": 30}))
