"""Synthetic sweeps on disk, small enough that a report takes a second or two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffretriever.budgets.features import QueryText
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepManifest, SweepMode
from diffretriever.studies.budgets.sweep_files import write_outcomes, write_queries

BUDGETS = (1, 4)


def make_sweep(
    root: Path,
    name: str,
    *,
    n: int = 30,
    modes: Sequence[SweepMode] = ("dense",),
    splits: Sequence[str] = ("test",),
    fingerprint: str = "f00d",
    budgets: Sequence[int] = BUDGETS,
    measures: Sequence[str] = ("nDCG@10",),
) -> Path:
    """Write a sweep in which long queries want K_q = 4 and short ones K_q = 1; return its folder."""
    folder = root / name
    folder.mkdir(parents=True)
    manifest = SweepManifest(
        collection=name,
        retriever="masked tiny",
        fingerprint=fingerprint,
        query_budgets=tuple(budgets),
        passage_budgets=tuple(budgets),
        modes=tuple(modes),
        measures=tuple(measures),
        splits=tuple(splits),
        command="python jobs/sweep_budgets.py",
    )
    (folder / "sweep.json").write_text(manifest.model_dump_json())
    settings = {"collection": f"gone/{name}", "exclude_self": True, "max_queries": None}
    (folder / "sweep.yaml").write_text(json.dumps(settings))
    for split in splits:
        generator = np.random.default_rng([*(name + split).encode()])
        lengths = generator.integers(1, 30, n)
        ids = [f"q{i}" for i in range(n)]
        texts = {i: QueryText(f"heat {i}", [*range(k)]) for i, k in zip(ids, lengths.tolist(), strict=True)}
        write_queries(folder, split, texts)
        cells = {}
        for mode in modes:
            for a in budgets:
                for b in budgets:
                    wanted = (lengths > 15) == (a > 1)
                    values = 0.4 + 0.1 * wanted + 0.01 * b + generator.normal(0, 0.05, n)
                    cells[mode, Budget(a, b)] = {
                        measure: dict(zip(ids, (values / (1 + place)).tolist(), strict=True))
                        for place, measure in enumerate(measures)
                    }
        write_outcomes(folder, split, cells)
    return folder
