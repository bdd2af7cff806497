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


class MarkCheck(Model):
    """The paper's marks against ours, over the pairs of cells that we have."""

    compared: int
    """Cells that could carry a sign and were measured by us, sign by sign."""
    agree: int
    only_paper: tuple[str, ...]
    only_ours: tuple[str, ...]

    def sentence(self) -> str:
        """Say how far the two agree."""
        if not self.compared:
            return "No pair of systems that the marks compare has been measured here."
        parts = [f"Marks: ours and the paper's agree in {self.agree} of {self.compared} cases."]
        parts += [f"Only in the paper: {'; '.join(self.only_paper)}."] if self.only_paper else []
        parts += [f"Only ours: {'; '.join(self.only_ours)}."] if self.only_ours else []
        return " ".join(parts)


def marks_of_ours(marking: Marking, measured: ReproducedTable) -> dict[Place, str]:
    """Return the signs that our own results would get by the paper's rules."""
    signs: dict[Place, str] = {}
    for (place, rule), holds in _decided(marking, measured).items():
        if holds:
            signs[place] = signs.get(place, "") + marking.rules[rule].sign
    return signs


def check_marks(marking: Marking, measured: ReproducedTable) -> MarkCheck:
    """Compare the signs that the paper prints with those that ours would get."""
    decided = _decided(marking, measured)
    both = 0
    only_paper: list[str] = []
    only_ours: list[str] = []
    for (place, rule), ours in decided.items():
        row, collection, mode = place
        sign = marking.rules[rule].sign
        paper = sign in marking.printed.get(row, {}).get(collection, {}).get(mode, "")
        both += int(paper == ours)
        if paper != ours:
            (only_paper if paper else only_ours).append(f"{sign} {row} {collection} {mode}")
    return MarkCheck(compared=len(decided), agree=both, only_paper=tuple(only_paper), only_ours=tuple(only_ours))


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
