"""benchmarks.search in a tiny form: ours and other libraries find what an exact search does."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks.search import loops, peers
from benchmarks.search.__main__ import SearchBenchmark, main
from benchmarks.search.arrays import Arrays, BenchArrays, spectra
from benchmarks.search.arrays import main as write_arrays
from benchmarks.search.figures import Built, Candidates, Hybrid
from benchmarks.search.texts import BenchTexts
from benchmarks.search.texts import main as write_texts
from diffretriever.collections import Passage, open_collection
from diffretriever.encoders.base import Encoder
from tests.pipelines.corpora import line, write_corpus
from tests.search.conftest import QUERIES as QUERY_TEXTS
from tests.search.conftest import fill

VECTORS: dict[str, Any] = {"passages": 400, "slots": 2, "dims": 32, "spread": "clustered", "query_slots": 2}
QUERIES = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("made-up") / "index")
    assert loops.prepare(place, VECTORS, QUERIES, "vectors").mb > 0
    return place


def recalls(found: Candidates) -> list[float]:
    assert all(len(run.ms) == QUERIES for run in found.runs)
    return [run.recall_10 for run in found.runs]


def test_our_candidates(folder: str) -> None:
    assert loops.build(folder).seconds >= 0
    found = loops.candidates(folder, VECTORS, [400], QUERIES)
    assert min(recalls(found)) > 0.9
    assert recalls(found)[-1] == 1, "all passages"


def test_hybrid(folder: str) -> None:
    loops.build(folder)
    words = loops.build_bm25(folder)
    assert words.built.mb > 0
    found = Hybrid.model_validate({**loops.hybrid(folder, VECTORS, QUERIES), "words": words})
    assert len(found.ms) == len(found.first_ms) == len(found.dense_ms) == len(found.bm25_ms) == QUERIES
    assert all(
        whole >= dense + bm25 for whole, dense, bm25 in zip(found.ms, found.dense_ms, found.bm25_ms, strict=True)
    )
    assert found.row(1e9)[-1].endswith("met")


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


def test_real_vectors_need_a_folder() -> None:
    with pytest.raises(SystemExit, match="--real"):
        main(SearchBenchmark(spread=("real",)))


def with_queries(folder: Path, passages: int, queries: list[str]) -> Path:
    """Write a BEIR folder; query i is answered by passage i."""
    write_corpus(folder, list(map(line, range(passages))))
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "{q}"}}\n' for i, q in enumerate(queries)))
    judged = "".join(f"q{i}\tp{i}\t1\n" for i in range(len(queries)))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def test_vectors_of_a_model_and_others_near_them(encoder: Encoder, tmp_path: Path) -> None:
    index = fill(encoder, str(tmp_path / "index"))
    folder = with_queries(tmp_path / "texts", 60, QUERY_TEXTS)
    job = BenchArrays(index=index.uri, collection=str(folder), queries=3, sample=5, output=tmp_path / "arrays")
    with patch("diffretriever.encoders.load_encoder", lambda *_: encoder):
        write_arrays(job)
    arrays = Arrays.read(tmp_path / "arrays")
    assert arrays.passages_PKH.shape[:2] == (60, 4)
    assert (len(arrays.queries_QMH), len(arrays.sample_QMH)) == (3, 5)
    dims = arrays.passages_PKH.shape[2]
    values = {"passages": 100, "slots": 3, "dims": dims, "spread": "real", "folder": str(tmp_path / "arrays")}
    vectors = loops.vectors_from(values)
    (block,) = vectors.blocks()
    assert block.shape == (100, 3, dims)
    np.testing.assert_array_equal(block[:60], arrays.passages_PKH[:, :3])
    np.testing.assert_allclose(np.linalg.norm(block.astype(np.float32), axis=2), 1, atol=2e-3)
    np.testing.assert_array_equal(block, next(iter(loops.vectors_from(values).blocks())))
    assert len(vectors.queries(2)) == 2
    assert len(vectors.write(str(tmp_path / "made"))) == 100


def test_drawn_vectors_are_as_far_from_real_ones_as_their_neighbours_are() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, 1, 1, 16))
    passages = (centres + 0.1 * rng.standard_normal((50, 20, 1, 16))).reshape(1000, 1, 16)
    passages = passages + 0.02 * rng.standard_normal((1000, 3, 16))
    shared, own = spectra(passages.astype(np.float16))
    means = passages.mean(axis=1)
    gaps = np.linalg.norm(means[:, None] - means[None], axis=2) + 100 * np.eye(1000)
    drawn = np.linalg.norm(rng.standard_normal((1000, 16)) @ shared, axis=1)
    # The neighbour of the highest product is farther than the nearest.
    assert gaps.min(axis=1).mean() < drawn.mean() < 3 * gaps.min(axis=1).mean()
    assert np.linalg.norm(rng.standard_normal((1000, 16)) @ own, axis=1).mean() < drawn.mean() / 2


def test_texts_of_collections_and_installed_packages(tmp_path: Path) -> None:
    folder = with_queries(tmp_path / "collection", 5, ["which number"])
    installed = tmp_path / "site-packages"
    (installed / "thing").mkdir(parents=True)
    doc = "Say what a thing is for.\n\n    It is for many purposes, of which this one is the first that comes to mind."
    (installed / "thing" / "__init__.py").write_text(f'def thing():\n    """{doc}\n    """\n')
    with patch("benchmarks.search.texts.sysconfig.get_path", lambda _: str(installed)):
        write_texts(BenchTexts(collections=(str(folder),), passages=50, output=tmp_path / "texts"))
    made = open_collection(str(tmp_path / "texts"))
    ids = [each.id for each in made.records() if isinstance(each, Passage)]
    assert ids == [*(f"0-p{i}" for i in range(5)), "thing.thing"]
    assert made.qrels("test") == {"0-q0": {"0-p0": 1}, "summary:thing.thing": {"thing.thing": 1}}
