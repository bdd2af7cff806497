"""Rows with other scores than MaxSim: compressed indexes and averaged slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.collections import Passage, open_collection, read_run
from diffretriever.core.files import is_file, read_text, remove
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.studies.reproduction import runner
from diffretriever.studies.reproduction.config import IndexStorage, ReproduceJob
from diffretriever.studies.reproduction.plan import Task
from diffretriever.studies.reproduction.report import read_results
from diffretriever.studies.reproduction.runner import evaluate_pooled_slots
from diffretriever.studies.reproduction.tables import EvaluationSet
from diffretriever.vectors.representations import Representations
from tests.index.compressed_cases import stored_vectors
from tests.studies.reproduction.cases import JobMaker
from tests.studies.reproduction.conftest import N_PASSAGES


@pytest.fixture
def task(tmp_path: Path, root: Path, index: PassageIndex) -> Task:
    """Over an index of one part, which is compressed without Ray."""
    return Task(
        label="a row",
        retriever=index.manifest.retriever,
        queries=EvaluationSet(str(root / "scifact"), "scifact", "test", "state"),
        measured="compressed",
        search={},
        index=tmp_path / "index",
        results=tmp_path / "evaluations" / "row-compressed",
        uncompressed=tmp_path / "evaluations" / "row",
    )


def evaluated(task: Task, job: ReproduceJob) -> None:
    runner._evaluate(task, job, "c")


def test_scores_and_sizes_stand_side_by_side(task: Task, job: JobMaker) -> None:
    before = PassageIndex.open(str(task.index)).version
    evaluated(task, job("compressed-storage"))
    assert PassageIndex.open(str(task.index)).version == before, "other rows search the index as it is"
    copy = PassageIndex.open(f"{task.index}-product2")
    assert copy.manifest.codec
    assert len(copy) == N_PASSAGES

    results = read_results(task.results)
    assert list(results) == ["dense", "compressed"]
    assert results["dense"].per_query["nDCG@10"] == read_results(task.uncompressed)["dense"].per_query["nDCG@10"]
    searched = read_results(task.results / "compressed")["dense"]
    assert results["compressed"].per_query["nDCG@10"] == searched.per_query["nDCG@10"]

    storage = IndexStorage.model_validate_json(read_text(task.results / "storage.json"))
    vectors_NH = stored_vectors(PassageIndex.open(str(task.index)))
    assert (storage.vectors, storage.raw) == (len(vectors_NH), 2 * vectors_NH.size)
    assert 0.5 * storage.raw < storage.zstd < storage.raw, "what zstd leaves"
    assert copy.manifest.codec is not None
    codec_bytes = (Path(copy.uri) / "codecs" / f"{copy.manifest.codec.digest}.safetensors").stat().st_size
    assert storage.codes == storage.vectors * copy.manifest.codec.width + codec_bytes
    assert results["dense"].mean["MiB"] == pytest.approx(storage.zstd / 2**20)
    assert results["compressed"].mean["GiB"] == pytest.approx(storage.codes / 2**30)
    assert results["compressed"].mean["ratio"] == pytest.approx(storage.zstd / storage.codes)
    assert not np.array_equal(stored_vectors(copy), vectors_NH)


def test_the_dense_half_is_not_the_row(task: Task, job: JobMaker) -> None:
    config = job("compressed-storage")
    evaluated(task, config)
    remove(task.results / "metrics.json")
    assert is_file(task.uncompressed / "metrics.json")
    assert not task.is_done
    evaluated(task, config)
    assert task.is_done


def slot_means(texts: Representations) -> list[np.ndarray]:
    return [vectors.mean(axis=0) for vectors in np.split(np.float64(texts.vectors_MH), texts.offsets[1:-1])]


def test_the_evaluation_ranks_by_averaged_slots(
    tmp_path: Path, root: Path, encoder: Encoder, index: PassageIndex
) -> None:
    collection = open_collection(str(root / "scifact"))
    passages = [record for record in collection.records() if isinstance(record, Passage)]
    represented = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
    output = tmp_path / "output"
    job = EvaluateJob(index=index.uri, collection=str(root / "scifact"), output=output, device="cpu", top_k=10)
    evaluate_pooled_slots(job, "c")
    run = read_run(output / "dense.trec")
    queries = collection.queries("test")
    asked = encoder.encode_queries([query.text for query in queries])
    means = slot_means(represented)
    for query, query_H in zip(queries, slot_means(asked), strict=True):
        scores = {passage.id: float(query_H @ mean_H) for passage, mean_H in zip(passages, means, strict=True)}
        best = sorted(scores.values(), reverse=True)[:10]
        assert list(run[query.id].values()) == pytest.approx(best, abs=1e-5)
        assert all(scores[passage] == pytest.approx(score, abs=1e-5) for passage, score in run[query.id].items())
    assert list(read_results(output)) == ["dense"]
