"""A sweep's tables: what is written is read back, and what is incomplete is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.budgets.features import QueryText
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepManifest, SweepMode
from diffretriever.studies.budgets.sweep_files import (
    Outcomes,
    read_queries,
    write_outcomes,
    write_queries,
)

QUERIES = ("q10", "q2", "a", "é")
CELLS = [Budget(a, b) for a in (1, 4) for b in (1, 2, 8)]

Cells = dict[tuple[SweepMode, Budget], dict[str, dict[str, float]]]


def manifest(folder: Path, **changes: object) -> None:
    values: dict[str, object] = {
        "collection": "c",
        "retriever": "masked tiny",
        "fingerprint": "f",
        "query_budgets": (1, 4),
        "passage_budgets": (1, 2, 8),
        "modes": ("dense", "sparse"),
        "measures": ("nDCG@10", "MRR@10"),
        "splits": ("test",),
        "command": "python jobs/sweep_budgets.py",
    }
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(SweepManifest.model_validate(values | changes).model_dump_json())


def cells() -> Cells:
    generator = np.random.default_rng(0)
    modes: tuple[SweepMode, ...] = ("sparse", "dense")
    return {
        (mode, budget): {
            m: dict(zip(QUERIES, generator.random(4).tolist(), strict=True)) for m in ("MRR@10", "nDCG@10")
        }
        for mode in modes
        for budget in reversed(CELLS)
    }


def test_every_value_is_read_back_in_its_place(tmp_path: Path) -> None:
    manifest(tmp_path)
    written = cells()
    write_outcomes(tmp_path, "test", written)
    for mode in ("dense", "sparse"):
        for measure in ("nDCG@10", "MRR@10"):
            outcomes = Outcomes.read(tmp_path, "test", mode, measure)
            assert outcomes.queries == QUERIES
            for budget in CELLS:
                assert outcomes.at(budget).tolist() == list(written[mode, budget][measure].values())


def test_the_best_budget_is_the_cheapest_of_the_best() -> None:
    values_ABQ = np.zeros((2, 3, 1))
    values_ABQ[0, 2] = values_ABQ[1, 1] = 1.0
    assert Outcomes(("q",), (1, 4), (1, 2, 8), values_ABQ).best() == Budget(4, 2)
    values_ABQ[0, 2] = 1.5
    assert Outcomes(("q",), (1, 4), (1, 2, 8), values_ABQ).best() == Budget(1, 8)


def test_an_incomplete_grid_and_a_foreign_one_are_refused(tmp_path: Path) -> None:
    manifest(tmp_path)
    written = cells()
    del written["dense", Budget(4, 2)]
    write_outcomes(tmp_path, "test", written)
    with pytest.raises(ValueError, match="no complete grid"):
        Outcomes.read(tmp_path, "test", "dense", "MRR@10")
    manifest(tmp_path, query_budgets=(1, 2))
    with pytest.raises(ValueError, match=r"query_budget 4 is not in sweep.json"):
        Outcomes.read(tmp_path, "test", "sparse", "MRR@10")


def test_queries_are_read_back(tmp_path: Path) -> None:
    queries = {"q2": QueryText("what is é", [5, 6, 5]), "q1": QueryText("", [])}
    write_queries(tmp_path, "test", queries)
    read = read_queries(tmp_path, "test")
    assert [(name, query.text, query.token_ids) for name, query in read.items()] == [
        (name, query.text, query.token_ids) for name, query in queries.items()
    ]
    with pytest.raises(ValueError, match=r"queries.parquet is not there"):
        read_queries(tmp_path, "train")
