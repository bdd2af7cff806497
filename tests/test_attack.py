"""benchmarks/attack: a seed gives the same round again, what is wrong is found, and the report says how to see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.attack import damage
from benchmarks.attack.base import Outcome, rng_of
from benchmarks.attack.driver import Plan, Tally, write_report
from benchmarks.attack.one import run_round
from benchmarks.attack.registry import ATTACKS, attack_of

ROOT = Path(__file__).resolve().parents[1]
SEED, ROUND = 3, 0


@pytest.fixture(autouse=True)
def _few() -> Iterator[None]:
    with patch.object(damage, "DAMAGES_A_ROUND", 5):
        yield


def damaged(folder: Path) -> tuple[Outcome, list[str]]:
    """What a round did, and the lines of its log without the names that Lance draws anew each time."""
    lines: list[str] = []
    with patch("benchmarks.attack.base.Round.log", lambda _, text: lines.append(text.partition(":")[0])):
        return run_round("damage", SEED, ROUND, folder, folder / "shared", s3=False), lines


def test_the_same_seed_gives_the_same_round_and_a_sound_platform_no_finding(tmp_path: Path) -> None:
    outcomes = [damaged(tmp_path / name) for name in ("one", "two")]
    assert outcomes[0] == outcomes[1]
    assert sum(outcomes[0][0].done.values()) >= 5
    assert outcomes[0][0].findings == ()
    assert rng_of(SEED, "damage", ROUND).random() != rng_of(SEED, "damage", ROUND + 1).random()


def test_a_check_that_sees_nothing_is_found_out(tmp_path: Path) -> None:
    with patch.object(damage, "problems", return_value=[]):
        outcome, _ = damaged(tmp_path / "round")
    assert outcome.findings
    assert all("unseen by --verify" in text for text in outcome.findings)


def test_a_search_that_crashes_is_found_out(tmp_path: Path) -> None:
    calls = iter(range(2))

    def answers(folder: Path, ids: list[str]) -> damage.Answers:
        if next(calls, None) is None:
            raise KeyError("lost")
        return damage.Answers((), {})

    with patch.object(damage, "answers", answers):
        outcome, _ = damaged(tmp_path / "round")
    assert any("searching raises KeyError: 'lost'" in text for text in outcome.findings)


def test_every_attack_goes_by_its_name() -> None:
    """Without importing those that need Ray."""
    for name, entry in ATTACKS.items():
        module, _, title = entry.place.partition(":")
        source = (ROOT / "benchmarks" / "attack" / f"{module}.py").read_text("utf-8")
        assert f"class {title}(" in source
        assert f'    name = "{name}"\n' in source
    assert attack_of("damage") is damage.DamageAttack
    with pytest.raises(ValueError, match="no attack 'siege': there are damage, life"):
        attack_of("siege")


def test_the_report_says_how_to_see_a_finding_again(tmp_path: Path) -> None:
    plan = Plan(minutes=1, seed=7, attacks=("life",), round=None, s3=True, output=tmp_path)
    again = plan.reproduce("life", 4)
    tally = Tally("life", 1, rounds=5)
    tally.done["write killed"] = 12
    tally.findings.append({"round": 4, "what": "a passage is gone", "folder": "x", "reproduce": again})
    write_report(plan, {"machine": "a small one"}, [tally], None)
    assert again == "python -m benchmarks.attack --only life --round 4 --seed 7"
    text = (tmp_path / "report.md").read_text()
    assert "| life | 5 | 0.0 | 12 write killed | 1 |" in text
    assert f"**life, round 4** (`{again}`):\n\n    a passage is gone" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["attacks"]["life"]["done"] == {"write killed": 12}
