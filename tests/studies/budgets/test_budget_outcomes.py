"""A sweep's files: written values are read back, incomplete ones are refused, and sampled queries are measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from diffretriever.budgets.features import QueryText
from diffretriever.collections import open_collection
from diffretriever.presets import load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepJob, SweepManifest, SweepMode
from diffretriever.studies.budgets.measuring import measure_sweep, select_budget
from diffretriever.studies.budgets.sweep_files import (
    Outcomes,
    SweptSplit,
    drawn_queries,
    read_manifest,
    read_queries,
    write_outcomes,
    write_queries,
)

QUERIES = ("q10", "q2", "a", "é")
CELLS = [Budget(a, b) for a in (1, 4) for b in (1, 2, 8)]

Cells = dict[tuple[SweepMode, Budget], dict[str, dict[str, float]]]


def manifest(folder: Path, **changes: object) -> None:
    values = SweepManifest(
        collection="c", retriever="masked tiny", fingerprint="f", query_budgets=(1, 4), passage_budgets=(1, 2, 8),
        modes=("dense", "sparse"), measures=("nDCG@10", "MRR@10"), splits=("test",), command="c",
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(values.model_copy(update=changes).model_dump_json())


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
    assert list(read) == list(queries)
    assert [(query.text, query.token_ids) for query in read.values()] == [("what is é", [5, 6, 5]), ("", [])]
    with pytest.raises(ValueError, match=r"queries.parquet is not there"):
        read_queries(tmp_path, "train")


N = 40


@pytest.fixture
def job(tmp_path: Path) -> SweepJob:
    """Over a training split of 40 queries, of which 5 are to be swept."""
    folder = tmp_path / "msmarco"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "p", "title": "", "text": "a text"}\n', "utf-8")
    rows = [json.dumps({"_id": f"q{n}", "text": f"question {n}"}) for n in range(N)]
    (folder / "queries.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    judged = "\n".join(f"q{n}\tp\t1" for n in range(N))
    (folder / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}\n", "utf-8")
    return SweepJob(collection=str(folder), output=tmp_path / "swept", splits=("train",), max_queries=5)


def test_the_same_queries_are_drawn_again(job: SweepJob) -> None:
    queries = open_collection(job.collection).queries("train")
    drawn = drawn_queries(job, "train", queries)
    assert len(drawn) == 5
    assert drawn == [query for query in queries if query in drawn], "in their order"
    assert drawn_queries(job, "train", queries) == drawn
    assert drawn_queries(job.model_copy(update={"max_queries": None}), "train", queries) == queries
    assert drawn_queries(job.model_copy(update={"max_queries": N}), "train", queries) == queries


def test_what_was_not_swept_is_not_measured(job: SweepJob) -> None:
    drawn = drawn_queries(job, "train", open_collection(job.collection).queries("train"))
    output = Path(str(job.output))
    write_queries(output, "train", {query.id: QueryText(query.text, [1]) for query in drawn})
    budgets = {"query_budgets": (1,), "passage_budgets": (1,)}
    manifest(output, collection="msmarco", modes=("dense",), splits=("train",), **budgets)
    (output / "sweep.yaml").write_text(job.to_yaml(), "utf-8")
    config = load_retriever("diffretriever-minilm").model_dump(mode="json")
    (output / "retriever.yaml").write_text(yaml.safe_dump(config), "utf-8")
    run = output / "train" / "runs" / "q1p1" / "dense.trec"
    run.parent.mkdir(parents=True)
    run.write_text("".join(f"{query.id} Q0 x 1 2.0 t\n{query.id} Q0 p 2 1.0 t\n" for query in drawn), "utf-8")

    outcomes_of = measure_sweep(job)
    assert Outcomes.read(output, "train", "dense", "MRR@10").values_ABQ.tolist() == [[[0.5] * 5]]
    assert [*SweptSplit(output, "train", read_manifest(output)).qrels()] == [query.id for query in drawn]
    chosen = select_budget(job, outcomes_of)
    assert chosen is not None
    assert (chosen.measure, chosen.value, chosen.queries) == ("MRR@10", 0.5, 5)
