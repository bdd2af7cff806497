"""GPU hours of the paper's rows, and the order that buys the most of them, against plain enumeration."""

from __future__ import annotations

from itertools import permutations

import pytest

from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.hours import RowNeeds, best_order, hours_page, needs_of
from diffretriever.studies.reproduction.plan import make_plan
from diffretriever.studies.reproduction.sizes import PASSAGES
from diffretriever.studies.reproduction.tables import BEIR7
from tests.studies.reproduction.cases import JobMaker


def rows(*needed: dict[str, float]) -> list[RowNeeds]:
    return [
        RowNeeds("table", f"row {number}", hours, dict.fromkeys(hours, 10), ()) for number, hours in enumerate(needed)
    ]


def bought(needed: list[RowNeeds], gpu_hours: float | None = None) -> int:
    return sum(len(step.rows) for step in best_order(needed, gpu_hours))


def test_a_shared_index_is_paid_once_and_the_most_rows_come_first() -> None:
    needed = rows({"a": 10.0}, {"b": 6.0}, {"b": 6.0, "c": 1.0}, {"b": 6.0}, {})
    steps = best_order(needed)
    assert [step.hours for step in steps] == [0.0, 6.0, 1.0, 10.0]
    assert [step.stored for step in steps] == [0, 10, 10, 10]
    assert [[row.label for row in step.rows] for step in steps] == [
        ["row 4"], ["row 1", "row 3"], ["row 2"], ["row 0"],
    ]  # fmt: skip


@pytest.mark.parametrize("hours", [0.0, 2.0, 5.0, 6.0, 9.0])
def test_few_hours_buy_as_many_rows_as_any_order_does(hours: float) -> None:
    needed = rows({"a": 4.0}, {"b": 2.0}, {"c": 3.0}, {"c": 3.0, "b": 2.0}, {"d": 5.0})
    most = 0
    for order in permutations(needed):
        made: set[str] = set()
        left = hours
        for row in order:
            cost = sum(taken for index, taken in row.hours.items() if index not in made)
            if cost <= left:
                made, left = made | row.indexes, left - cost
        most = max(most, sum(row.indexes <= made for row in needed))
    assert bought(needed, hours) == most


def test_a_row_takes_its_passages_at_the_rate(job: JobMaker) -> None:
    plan = make_plan(job("main-beir7", "multistep-indomain", plan=True))
    found = {(row.table, row.label): row for row in needs_of(plan, 200)}
    passages = sum(PASSAGES[name] for name in BEIR7)
    dream = found["main-beir7", "zero-shot DiffRetriever Dream multi-rep, paper"]
    assert sum(dream.hours.values()) == pytest.approx(passages / 200 / 3600)
    assert dream.lacks == (
        "collections nq, hotpotqa, trec-covid, fiqa, arguana, quora",
        "no weights for Dream-org/Dream-v0-Instruct-7B: not in the hub cache and no --backbones override",
    )
    one, two = (found["multistep-indomain", f"zero-shot DiffRetriever Dream S={steps}, paper"] for steps in (1, 2))
    assert sum(two.hours.values()) == pytest.approx(2 * sum(one.hours.values()))
    bm25 = found["main-beir7", "zero-shot BM25 sparse, paper"]
    assert (dict(bm25.hours), bm25.lacks) == ({}, ("collections nq, hotpotqa, trec-covid, fiqa, arguana, quora",))
    zero_shot, tuned = (found["main-beir7", f"{regime} DiffEmbed Dream single-rep, paper"].indexes
                        for regime in ("zero-shot", "fine-tuned"))  # fmt: skip
    assert not zero_shot & tuned


def test_the_page(job: JobMaker) -> None:
    page = hours_page(make_plan(job("main-beir7", "mini", plan=True)), 200, 13)
    assert "13 GPU hours: 2 of 22 rows" in page
    assert "q4p4" not in page, "mini is not the paper's"
    assert "Dream-org/Dream-v0-Instruct-7B       15.2" in page
    assert "msmarco     8,841,823  2.9" in page
    with pytest.raises(ValueError, match="--gpu-hours goes with --plan"):
        ReproduceJob.model_validate({"output": "o", "gpu_hours": 3})
