"""Predicted bytes: the paper's figures, and what Lance and the codes really take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.search.dense.codes import CODES, open_segments
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.studies import planning as storage
from diffretriever.studies.planning import make_plan
from diffretriever.studies.planning_config import PlanJob
from diffretriever.vectors.representations import Representations
from diffretriever.vectors.sketches import DIRECTIONS, SKETCH_BYTES
from tests.search.dense_cases import build_codes

MS_MARCO = 8_841_823
GIB = 2**30


@pytest.mark.parametrize(
    ("retriever", "raw", "zstd", "two_bits"),
    [
        ("diffretriever-dream-single", "59.03", "46.6", "7.38"),
        ("diffretriever-dream", "944.41", "746", "118.1"),
        ("diffretriever-llada-single", "67.46", "53.3", "8.43"),
        ("diffretriever-llada", "269.83", "213", "33.7"),
    ],
)
def test_the_papers_index_sizes(retriever: str, raw: str, zstd: str, two_bits: str) -> None:
    """In GiB, to the last digit; the paper prints 47-48, 742, 54, 213 and, by its own codec, 7.5, 118, 8.5, 34."""
    job = PlanJob(passages=MS_MARCO, retriever=retriever, bandwidth=10)
    layouts = make_plan(job, None, []).budgets[0].layouts
    for layout, figure in (("fp16 or bf16", raw), ("bf16, zstd", zstd), ("2-bit products", two_bits)):
        digits = len(figure.partition(".")[2])
        assert f"{layouts[layout] / GIB:.{digits}f}" == figure, layout


@pytest.mark.parametrize(("n_vectors", "hidden_size", "n_impacts"), [(4, 64, 12), (1, 256, 30), (16, 32, 0)])
def test_a_real_index_is_as_large_as_predicted(
    n_vectors: int, hidden_size: int, n_impacts: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    passages = synthetic_passages(rng, 3000)
    index = fill(str(tmp_path / "index"), passages, synthetic(rng, len(passages), n_vectors, hidden_size, n_impacts))
    text_bytes = float(np.mean([len(p.text.encode()) for p in passages]))
    shape = storage.Shape(len(passages), hidden_size, n_vectors, n_impacts, text_bytes)
    assert storage.table_bytes(shape) == pytest.approx(index.contents().bytes, rel=0.1)
    build_codes(index)
    files = [f for fragment in index.fragments() for f in CODES.folder_of(index, fragment).path.glob("*.bin")]
    sizes = {file.name: file.stat().st_size for file in files}
    means = sum(sizes[name] for name in ("rows.bin", "mean_codes.bin", "mean_scales.bin"))
    assert storage.codes_bytes(shape) == sum(sizes.values())
    assert storage.codes_bytes(shape, "means") == means
    CandidateIndex.build(index, open_segments(index)[0])
    (fragment,) = index.fragments()
    kept = list(CODES.folder_of(index, fragment).path.glob("sketch/*.bin"))
    directions = hidden_size * DIRECTIONS * 4
    rounded_up = sum(file.stat().st_size for file in kept) - directions - storage.sketches_bytes(shape)
    assert 0 <= rounded_up < 64 * SKETCH_BYTES


def synthetic_passages(rng: np.random.Generator, n: int) -> list[Passage]:
    """Sentences of words with Zipf frequencies, from a synthetic vocabulary."""
    letters = np.array(list("etaoinshrdlucmfw"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(3000)]
    shares = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), (n, 60), p=shares / shares.sum())
    return [Passage(f"module.part.{i}", "", " ".join(words[w] for w in row)) for i, row in enumerate(drawn)]


def synthetic(rng: np.random.Generator, n: int, n_vectors: int, hidden_size: int, n_impacts: int) -> Representations:
    vectors = rng.normal(size=(n * n_vectors, hidden_size)).astype(np.float32)
    ids = np.sort(rng.integers(0, 30522, (n, n_impacts)), axis=1).reshape(-1)
    return Representations(
        vectors_MH=(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16),
        offsets=np.arange(0, n * n_vectors + 1, n_vectors, dtype=np.int64),
        slot_tokens=rng.integers(0, 30522, n * n_vectors).astype(np.int32),
        impact_ids=ids.astype(np.int32),
        impact_weights=rng.exponential(size=n * n_impacts).astype(np.float32),
        impact_offsets=np.arange(n + 1, dtype=np.int64) * n_impacts,
        n_tokens=np.full(n, 60, np.int32),
    )


def fill(uri: str, passages: list[Passage], made: Representations) -> PassageIndex:
    retriever = MaskedRetriever.model_validate({"backbone": {"source": "x"}, "budget": "q4p16"})
    manifest = IndexManifest(
        retriever=retriever, weights="w", hidden_size=made.hidden_size, vocab_size=30522, created="2026-01-01"
    )
    index = PassageIndex.create(uri, manifest)
    receipt = write_block(uri, join_columns(text_table(passages, "c"), made.to_arrow()))
    Committer(index).commit({"all": receipt}, [])
    return index
