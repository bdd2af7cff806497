"""Vectors a token from corpus to ranking, without Ray: ragged numbers of vectors in every file and every search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fastapi.testclient import TestClient

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import SearchResponse
from diffretriever.search import open_searcher
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.search.inspection import inspect
from diffretriever.search.searcher import Searcher
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.maxsim import maxsim
from diffretriever.vectors.representations import read_vectors
from tests.index.compressed_cases import compressed
from tests.pipelines.corpora import JobMaker, line, write_corpus
from tests.search.dense_cases import CPU, build_codes, prepare
from tests.serving.serving_cases import local_service

QUERIES = ["masked slot", "a", "the index of a corpus in shards"]
PASSAGES = 60


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.pipelines.cluster.is_ray_running", lambda: False)
    monkeypatch.delattr("diffretriever.pipelines.ray_executor.ray_session")


@pytest.fixture
def job(checkpoint: Path, tmp_path: Path, make_job: JobMaker) -> EncodeJob:
    place = {"source": str(checkpoint), "dtype": "float32"}
    retriever = {"method": "tokens", "backbone": place, "clusters": 4, "mean_share": 0.5}
    file = tmp_path / "tokens.yaml"
    file.write_text(yaml.safe_dump(retriever))
    corpus = write_corpus(tmp_path / "corpus", [line(i) for i in range(PASSAGES)])
    return make_job(corpus, retriever=str(file), backbone=None, encoders=None, rows_per_block=None)


@pytest.fixture
def index(job: EncodeJob) -> PassageIndex:
    encode_collection(job)
    return PassageIndex.open(job.index)


def neural(index: PassageIndex) -> tuple[Searcher, Encoder]:
    searcher = open_searcher(index.uri)
    assert searcher.encoder is not None
    return searcher, searcher.encoder


def by_hand(index: PassageIndex, encoder: Encoder) -> dict[str, np.ndarray]:
    """Id → scores of all queries, from the stored vectors."""
    table = index.dataset.to_table(columns=["id", "reps"])
    vectors_NH, offsets = read_vectors(table)
    asked = encoder.encode_queries(QUERIES)
    query_MH, passage_NH = (torch.from_numpy(v.astype(np.float32)) for v in (asked.vectors_MH, vectors_NH))
    scores_QP = maxsim(query_MH, asked.offsets, passage_NH, offsets).numpy()
    return dict(zip(table["id"].to_pylist(), scores_QP.T, strict=True))


def test_every_exact_search_returns_the_maxsim_scores(index: PassageIndex) -> None:
    searcher, encoder = neural(index)
    expected = by_hand(index, encoder)
    most = index.manifest.retriever.max_vectors("passage")
    build_codes(index)
    counts = np.diff(read_vectors(index.dataset.to_table(columns=["reps"]))[1])
    assert counts.max() <= most
    for found in (
        searcher.search(QUERIES, k=PASSAGES, modes=["dense"])["dense"],
        found_by(index, encoder, StreamingScan),
        found_by(index, encoder, CodedScan),
    ):
        for query, hits in enumerate(found):
            assert len(hits) == PASSAGES
            for passage, score in hits:
                assert score == pytest.approx(expected[passage][query], abs=1e-5)


def found_by(index: PassageIndex, encoder: Encoder, way: type[EncodedSearch]) -> Hits:
    options = SearchOptions(index=index.uri)
    search = StreamingScan(index, options, CPU) if way is StreamingScan else open_dense(index, options, CPU)
    assert isinstance(search, way)
    return search.search(encoder.encode_queries(QUERIES), PASSAGES)


def test_candidates_are_scored_exactly(index: PassageIndex) -> None:
    _, encoder = neural(index)
    asked, exact = encoder.encode_queries(QUERIES), found_by(index, encoder, StreamingScan)
    search = open_dense(prepare(index), SearchOptions(index=index.uri), CPU)
    assert isinstance(search, CandidateSearch)
    for hits, all_hits in zip(search.search(asked, 10), exact, strict=True):
        assert len(hits) == 10
        assert set(hits) <= set(all_hits)


def test_compressed_token_vectors_pass_verification(index: PassageIndex) -> None:
    for version in (index, compressed(index, "product4")):
        verification = inspect(version, check=True).verification
        assert verification is not None
        assert verification.problems == []
    accelerate(AccelerateJob(index=index.uri))
    searcher, encoder = neural(PassageIndex.open(index.uri))
    exact = by_hand(index, encoder)
    for query, hits in enumerate(searcher.search(QUERIES, k=5, modes=["dense"])["dense"]):
        assert len(hits) == 5
        for passage, score in hits:
            assert score == pytest.approx(exact[passage][query], abs=0.1), "4 bits a dimension"


def test_a_server_answers_explains_and_takes_passages(index: PassageIndex) -> None:
    expected = by_hand(index, neural(index)[1])
    with TestClient(
        make_api(local_service(index.uri), Keys.of("key"), None), headers={"Authorization": "Bearer key"}
    ) as client:
        new = {"id": "new", "title": "", "text": QUERIES[0], "collection": "corpus"}
        client.post("/passages", json={"passages": [new]}).raise_for_status()
        asked = {"query": QUERIES[0], "k": 3, "explain": True}
        (found,) = SearchResponse.model_validate(client.post("/search", json=asked).raise_for_status().json()).results
        assert client.post("/search", json={"query": "a", "budget": 2}).status_code == 422
    assert found.hits[0].id == "new"
    for hit in found.hits:
        assert hit.explanation is not None
        matches = [match.product for match in hit.explanation.slots]
        assert hit.score == pytest.approx(np.mean(matches), abs=1e-5)
        assert hit.id == "new" or hit.score == pytest.approx(expected[hit.id][0], abs=1e-5)
