"""benchmarks/attack repeats a round by its seed and reports faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.attack import damage
from benchmarks.attack.base import Outcome, rng_of
from benchmarks.attack.one import run_round

SEED, ROUND = 3, 0


@pytest.fixture(autouse=True)
def _few() -> Iterator[None]:
    with patch.object(damage, "DAMAGES_A_ROUND", 5):
        yield


def damaged(folder: Path) -> tuple[Outcome, list[str]]:
    """Return the outcome of a round, and its log without Lance's random names."""
    lines: list[str] = []
    with patch("benchmarks.attack.base.Round.log", lambda _, text: lines.append(text.partition(":")[0])):
        return run_round("damage", SEED, ROUND, folder, folder / "shared"), lines


def test_a_seed_repeats_a_round_without_findings(tmp_path: Path) -> None:
    outcomes = [damaged(tmp_path / name) for name in ("one", "two")]
    assert outcomes[0] == outcomes[1]
    assert sum(outcomes[0][0].done.values()) >= 5
    assert outcomes[0][0].findings == ()
    assert rng_of(SEED, "damage", ROUND).random() != rng_of(SEED, "damage", ROUND + 1).random()


def test_damage_that_verify_misses_is_reported(tmp_path: Path) -> None:
    with patch.object(damage, "problems", return_value=[]):
        outcome, _ = damaged(tmp_path / "round")
    assert outcome.findings
    assert all("unseen by --verify" in text for text in outcome.findings)


def test_a_crashing_search_is_reported(tmp_path: Path) -> None:
    calls = iter(range(2))

    def answers(folder: Path, ids: list[str]) -> damage.Answers:
        if next(calls, None) is None:
            raise KeyError("lost")
        return damage.Answers((), {})

    with patch.object(damage, "answers", answers):
        outcome, _ = damaged(tmp_path / "round")
    assert any("searching raises KeyError: 'lost'" in text for text in outcome.findings)
