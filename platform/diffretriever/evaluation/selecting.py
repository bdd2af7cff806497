"""What a selector did in an evaluation: how many queries got which K_q, and what encoding them took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median

from diffretriever.encoders.base import Encoder
from diffretriever.evaluation.tables import Cell, format_table, markdown_table
from diffretriever.search.selecting import BudgetChooser, Choice
from schemas.selection import SelectorReport

_TIMED_QUERIES = 50
_ENOUGH_SECONDS, _ENOUGH_QUERIES = 10.0, 5


def report_selector(
    chooser: BudgetChooser, encoder: Encoder, texts: Sequence[str], choices: Sequence[Choice]
) -> SelectorReport:
    """Count what was chosen and time the encoding of some queries, one at a time, with every K_q and the chosen one."""
    chosen = Counter(choice.budget for choice in choices)
    budgets = sorted({*chooser.selector.budgets, chooser.own_budget})
    sample = [texts[number] for number in range(0, len(texts), -(-len(texts) // _TIMED_QUERIES))]
    fixed: dict[int, list[float]] = {budget: [] for budget in budgets}
    adaptive: list[float] = []
    encode = encoder.encode_queries
    encode(sample[:1], [budgets[-1]])
    start = time.perf_counter()
    for text in sample:
        if len(adaptive) >= _ENOUGH_QUERIES and time.perf_counter() - start > _ENOUGH_SECONDS:
            break
        # One after the other for each query, so that a slower minute of the machine meets all of them.
        for budget, times in fixed.items():
            times.append(_milliseconds(partial(encode, [text], [budget])))
        adaptive.append(_milliseconds(partial(_choose_and_encode, chooser, encoder, text)))
    return SelectorReport(
        selector=chooser.selector.name,
        own_budget=chooser.own_budget,
        mean_budget=mean(choice.budget for choice in choices),
        queries={budget: chosen[budget] for budget in budgets},
        milliseconds={budget: median(times) for budget, times in fixed.items()},
        adaptive_milliseconds=median(adaptive),
        timed=len(adaptive),
    )


def selector_table(report: SelectorReport) -> str:
    """Return the report as plain text, for the terminal."""
    return f"{_sentence(report)}\n\n{format_table(_rows(report), _COLUMNS)}"


def selector_section(report: SelectorReport) -> str:
    """Return the report as a section of a page in Markdown."""
    note = f"Median time of {report.timed:,} queries encoded alone; the adaptive one includes the choice."
    return f"\n## Adaptive K_q\n\n{_sentence(report)}\n\n{markdown_table(_rows(report), _COLUMNS)}\n\n{note}\n"


_COLUMNS = ("K_q", "queries", "share", "encoding (ms)")


def _sentence(report: SelectorReport) -> str:
    return f"Selector {report.selector}: mean K_q {report.mean_budget:.2f}; the retriever's own is {report.own_budget}."


def _rows(report: SelectorReport) -> list[list[Cell]]:
    total = sum(report.queries.values())
    rows: list[list[Cell]] = [
        [str(budget), f"{count:,}", f"{count / total:.1%}", f"{report.milliseconds[budget]:.1f}"]
        for budget, count in report.queries.items()
    ]
    return [*rows, ["adaptive", f"{total:,}", "100.0%", f"{report.adaptive_milliseconds:.1f}"]]


def _choose_and_encode(chooser: BudgetChooser, encoder: Encoder, text: str) -> None:
    encoder.encode_queries([text], [choice.budget for choice in chooser.choose([text])])


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)
