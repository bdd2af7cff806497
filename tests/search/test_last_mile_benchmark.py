"""benchmarks.last_mile in a tiny form."""

from __future__ import annotations

import pytest

from benchmarks.last_mile import loops

MADE = {"passages": 40, "queries": 6}


@pytest.mark.parametrize("accelerated", [False, True])
def test_an_evaluation_and_queries_one_by_one(accelerated: bool) -> None:
    assert len(loops.evaluation(MADE, 10, accelerated=accelerated)) == 2
    (milliseconds,) = loops.singles(MADE, 3, accelerated=accelerated).values()
    assert milliseconds > 0


def test_the_order_of_made_up_ids() -> None:
    seconds, each = loops.order(1000).values()
    assert seconds > 0
    assert 20 < each < 60
