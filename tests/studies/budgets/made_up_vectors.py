"""Indexes, encoded queries and dense runs of synthetic sweeps, over random vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pyarrow import feather

from diffretriever.collections import Passage, Run, write_run
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.vectors.representations import Representations
from tests.studies.budgets.made_up import BUDGETS

HIDDEN = 8
PASSAGES = [Passage(f"d{i}", "wing" if i < 5 else "", f"heat q{i}") for i in range(20)]


def vectors(n: int, slots: int, seed: int) -> Representations:
    """Unit vectors, `slots` a text, and an impact for every text but the first."""
    generator = np.random.default_rng([seed, slots])
    found = generator.normal(size=(n * slots, HIDDEN))
    return Representations(
        vectors_MH=(found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float16),
        offsets=np.arange(n + 1, dtype=np.int64) * slots,
        slot_tokens=np.full(n * slots, -1, np.int32),
        impact_ids=np.full(n - 1, 3, np.int32),
        impact_weights=generator.random(n - 1).astype(np.float32) + 0.1,
        impact_offsets=np.maximum(np.arange(n + 1, dtype=np.int64) - 1, 0),
        n_tokens=np.full(n, 3, np.int32),
    )


def passage_vectors(slots: int) -> np.ndarray:
    """The stored vectors of the index of K_p = `slots`, fp32 [passages, slots, H]."""
    return vectors(len(PASSAGES), slots, 1).vectors_MH.astype(np.float32).reshape(-1, slots, HIDDEN)


def query_vectors(n: int, slots: int) -> np.ndarray:
    """Likewise of `n` queries."""
    return vectors(n, slots, 2).vectors_MH.astype(np.float32).reshape(n, slots, HIDDEN)


def scores(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Mean MaxSim by einsum, [queries, passages]."""
    found: np.ndarray = np.einsum("qah,pbh->qpab", queries, passages).max(axis=3).mean(axis=2)
    return found


def add_vectors(folder: Path, split: str, n: int) -> None:
    """Add indexes, encoded queries and dense runs to a synthetic sweep of `n` queries."""
    for slots in BUDGETS:
        place = folder / "indexes" / f"p{slots}"
        if not place.exists():
            _write_index(str(place), slots)
        encoded = folder / split / "encoded"
        encoded.mkdir(exist_ok=True)
        feather.write_feather(vectors(n, slots, 2).to_arrow(), encoded / f"q{slots}-0.arrow")
    for k_q in BUDGETS:
        for k_p in BUDGETS:
            found = scores(query_vectors(n, k_q), passage_vectors(k_p))
            run = Run.of({f"q{q}": {f"d{p}": float(s) for p, s in enumerate(row)} for q, row in enumerate(found)})
            write_run(folder / split / "runs" / str(Budget(k_q, k_p)) / "dense.trec", [run], "dense")


def _write_index(uri: str, slots: int) -> None:
    retriever = MaskedRetriever.model_validate({"backbone": {"source": "tiny"}, "budget": f"q1p{slots}"})
    manifest = IndexManifest(retriever=retriever, weights="w", hidden_size=HIDDEN, vocab_size=9, created="2026-01-01")
    index = PassageIndex.create(uri, manifest)
    rows = join_columns(text_table(PASSAGES, "c"), vectors(len(PASSAGES), slots, 1).to_arrow())
    Committer(index).commit({"all": write_block(uri, rows)}, [])
