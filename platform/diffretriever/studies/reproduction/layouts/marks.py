"""Signs of significance: what the paper's mean, where it prints them, and which of ours would get them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from diffretriever.schemas.base import Model
from diffretriever.studies.reproduction.report import PairedTest, ReproducedRow, ReproducedTable

Place: TypeAlias = tuple[str, str, str]
"""Row, collection, mode."""


class MarkRule(Model):
    """What one sign says."""

    sign: str
    meaning: str
    alpha: float
    """A paired t-test over queries has p below this."""
    sense: Literal["better", "different"]
    """`better`: the test is two-sided and the marked row has the higher mean. `different`: whichever is higher."""
    pairs: dict[str, str]
    """Row that may be marked → row that it is compared with."""


class Marking(Model):
    """The signs of a table."""

    rules: tuple[MarkRule, ...] = ()
    """Of two rules about the same pair the one with the smaller alpha that holds is printed."""
    printed: dict[str, dict[str, dict[str, str]]] = Field(default_factory=dict)
    """Row → collection → mode → the signs that the paper prints there."""

    def notes(self) -> tuple[str, ...]:
        """Return what each sign means, for the foot of a table."""
        return tuple(f"{rule.sign} {rule.meaning} (paired t-test, p < {rule.alpha:g})" for rule in self.rules)


def marks_of_ours(marking: Marking, measured: ReproducedTable) -> dict[Place, str]:
    """Return the signs that our own results would get by the paper's rules."""
    signs: dict[Place, str] = {}
    for (place, rule), holds in _decided(marking, measured).items():
        if holds:
            signs[place] = signs.get(place, "") + marking.rules[rule].sign
    return signs


def compare_marks(marking: Marking, measured: ReproducedTable) -> str:
    """Return a sentence that compares the signs that the paper prints with those that ours would get."""
    decided = _decided(marking, measured)
    if not decided:
        return "No pair of systems that the marks compare has been measured here."
    differing: dict[str, list[str]] = {"in the paper": [], "ours": []}
    for ((row, collection, mode), rule), ours in decided.items():
        sign = marking.rules[rule].sign
        paper = sign in marking.printed.get(row, {}).get(collection, {}).get(mode, "")
        if paper != ours:
            differing["in the paper" if paper else "ours"].append(f"{sign} {row} {collection} {mode}")
    agree = len(decided) - sum(map(len, differing.values()))
    parts = [f"Marks: ours and the paper's agree in {agree} of {len(decided)} cases."]
    return " ".join([*parts, *(f"Only {side}: {'; '.join(marks)}." for side, marks in differing.items() if marks)])


def _decided(marking: Marking, measured: ReproducedTable) -> dict[tuple[Place, int], bool]:
    rows = {row.id: row for row in measured.rows}
    found: dict[tuple[Place, int], bool] = {}
    for n, rule in enumerate(marking.rules):
        for name, other in rule.pairs.items():
            if name not in rows or other not in rows:
                continue
            for collection, mode, test in _tests(rows[name], rows[other]):
                found[(name, collection, mode), n] = test.p < rule.alpha and (
                    rule.sense == "different" or test.difference > 0
                )
    return {key: holds and not _is_outdone(marking, key, found) for key, holds in found.items()}


def _is_outdone(marking: Marking, key: tuple[Place, int], found: dict[tuple[Place, int], bool]) -> bool:
    """Return whether a stricter rule about the same pair holds too."""
    place, own = key
    rule = marking.rules[own]
    return any(
        found.get((place, n), False) and other.alpha < rule.alpha and other.pairs.get(place[0]) == rule.pairs[place[0]]
        for n, other in enumerate(marking.rules)
    )


def _tests(row: ReproducedRow, other: ReproducedRow) -> Iterator[tuple[str, str, PairedTest]]:
    for cell in row.cells:
        yield from ((cell.collection, cell.mode, test) for test in cell.tests if test.against == other.id)
    for cell in other.cells:
        for test in cell.tests:
            if test.against == row.id:
                turned = test.model_copy(update={"against": other.id, "difference": -test.difference})
                yield cell.collection, cell.mode, turned
