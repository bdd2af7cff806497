"""benchmarks.search in a tiny form: ours and other libraries find what an exact search does."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.search import loops, peers
from benchmarks.search.__main__ import SearchBenchmark, main
from benchmarks.search.figures import Built, Candidates
from diffretriever.search.dense.candidates import PROPOSERS

VECTORS: dict[str, Any] = {"passages": 400, "slots": 2, "dims": 32, "spread": "clustered", "query_slots": 2}
QUERIES = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("made-up") / "index")
    assert loops.prepare(place, VECTORS, QUERIES).mb > 0
    return place


def recalls(found: Candidates) -> list[float]:
    assert all(len(run.ms) == QUERIES for run in found.runs)
    return [run.recall_10 for run in found.runs]


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_our_candidates(proposer: str, folder: str) -> None:
    assert loops.build(folder, proposer).seconds >= 0
    found = loops.candidates(folder, VECTORS, proposer, [400], QUERIES)
    assert min(recalls(found)) > 0.9
    assert recalls(found)[-1] == 1, "all passages"


def test_exact_searches(folder: str) -> None:
    rows = loops.exact(folder, VECTORS, QUERIES, 3)
    exact = [row for row in rows if "bf16" not in row["name"]]
    assert len(exact) == len(rows) - 1 == 6
    assert all(row["recall_10"] == row["recall_100"] == 1 for row in exact)


@pytest.mark.parametrize("peer", ["faiss", "lancedb"])
def test_other_libraries(peer: str, folder: str) -> None:
    if peer == "faiss":
        pytest.importorskip("faiss")
    found: Candidates = getattr(peers, peer)(folder, VECTORS, QUERIES)
    assert isinstance(found.built, Built)
    assert found.built.mb > 0
    assert max(recalls(found)) > 0.9


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.search.__main__.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="faiss is not installed"):
        main(SearchBenchmark())


def test_what_is_no_longer_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        SearchBenchmark.from_command_line(["--proposers", "faiss_tokens"])
    assert "--proposers" in capsys.readouterr().err
