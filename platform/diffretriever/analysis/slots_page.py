"""The part of the page on slots: which of them win, and how different they are."""

from __future__ import annotations

from collections.abc import Iterator

from diffretriever.analysis.numbers import NOTHING, level_with_interval, share
from diffretriever.evaluation.tables import Cell, markdown_table
from schemas.analyse import AnalysisReport
from schemas.slots import SlotSimilarity, SlotWins


def slots_section(report: AnalysisReport) -> Iterator[str]:
    """Yield the parts of the section; nothing where the sweeps no longer have their vectors."""
    if not report.similarities:
        return
    yield "## Which slots win, and how different they are"
    yield (
        "Mean cosine over the pairs of a text's slots, and over texts, with bootstrap 95% intervals: at 1 all slots "
        "are one vector, and MaxSim over them is what one slot gives. At most 500 texts a set, evenly spaced."
    )
    yield markdown_table([_row(report, k) for k in _slot_counts(report)], ["K", *_columns(report)])
    yield "![Cosine between slots, and shares of wins](slots.png)"
    if report.wins:
        yield (
            f"Wins: over the ten top-ranked passages of each query's dense run at {report.fixed} (no judgements "
            "needed), the passage slot that MaxSim takes for each query slot; of equal ones the first. `in use` is two "
            "to the entropy of the passage slots' shares: all of them if all win alike."
        )
        rows: list[list[Cell]] = [
            [wins.collection, wins.queries, wins.passages, _strongest(wins), f"{wins.in_use:.1f} of {_width(wins)}"]
            for wins in report.wins
        ]
        yield markdown_table(rows, ["queries", "n", "pairs", "the slot that wins most", "in use"])


def _columns(report: AnalysisReport) -> list[str]:
    return list(dict.fromkeys(f"{found.collection} {found.side}" for found in report.similarities))


def _slot_counts(report: AnalysisReport) -> list[int]:
    return sorted({found.slots for found in report.similarities})


def _row(report: AnalysisReport, slots: int) -> list[Cell]:
    found = {f"{f.collection} {f.side}": f for f in report.similarities if f.slots == slots}
    return [str(slots), *(_cosine(found.get(column)) for column in _columns(report))]


def _cosine(found: SlotSimilarity | None) -> str:
    return NOTHING if found is None else level_with_interval(found.cosine, found.interval)


def _strongest(wins: SlotWins) -> str:
    totals = [sum(column) / len(wins.shares) for column in zip(*wins.shares, strict=True)]
    place = totals.index(max(totals))
    return f"slot {place + 1}: {share(totals[place])}"


def _width(wins: SlotWins) -> int:
    return len(wins.shares[0])
