"""The part of the page that sets budgets and oracles beside other systems."""

from __future__ import annotations

from collections.abc import Iterator

from diffretriever.analysis.numbers import NOTHING, between, points, signed
from diffretriever.evaluation.tables import Cell, markdown_table
from diffretriever.statistics.significance import ALPHA
from schemas.against import AgainstTest
from schemas.analyse import AnalysisReport

_SIDES = {"fixed": "fixed budget", "query": "oracle K_q", "passage": "oracle K_p", "joint": "oracle of both"}


def against_section(report: AnalysisReport) -> Iterator[str]:
    """Yield the parts of the section; nothing where no other system was given."""
    if not report.against:
        return
    yield "### Against other systems"
    yield (
        "The fixed budget and the oracles less another system's run, on the same queries. †: p < .05, paired two-sided "
        "t-test, corrected by Holm for the four rows of a system. An oracle sees the judgements and the other system "
        "does not, so that only the fixed budget's row compares systems; `carried over` is the difference that is left "
        "of an oracle without its luck. Dashed lines in the figures above show the same systems."
    )
    rows: list[list[Cell]] = [
        [
            test.mode,
            test.collection,
            f"{test.system} {points(test.system_mean)}",
            f"{_SIDES[test.side]} {points(test.mean)}",
            _difference(test),
            NOTHING if test.carried is None else signed(test.carried),
        ]
        for test in report.against
    ]
    yield markdown_table(rows, ["mode", "queries", "system", "against it", "difference", "carried over"])


def _difference(test: AgainstTest) -> str:
    dagger = "†" if test.t_test_holm < ALPHA else ""
    return f"{signed(test.difference)}{dagger} {between(test.interval)}"
