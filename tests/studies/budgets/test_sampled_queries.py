"""A sweep of some of a split's queries: which they are, what is measured of them, and which budget is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from diffretriever.budgets.features import QueryText
from diffretriever.collections import open_collection
from diffretriever.presets import load_retriever
from diffretriever.schemas.sweep import SweepJob, SweepManifest
from diffretriever.studies.budgets.measuring import measure_sweep, select_budget
from diffretriever.studies.budgets.sweep_files import (
    Outcomes,
    SweptSplit,
    drawn_queries,
    read_manifest,
    write_queries,
)

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
    manifest = SweepManifest(
        collection="msmarco", retriever="tiny", fingerprint="f", query_budgets=(1,), passage_budgets=(1,),
        modes=("dense",), measures=("nDCG@10", "MRR@10"), splits=("train",), command="c",
    )  # fmt: skip
    (output / "sweep.json").write_text(manifest.model_dump_json(), "utf-8")
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
