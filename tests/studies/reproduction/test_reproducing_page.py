"""docs/reproducing.md: its commands are understood by their jobs, and its numbers are those of the plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.latency.__main__ import LatencyBenchmark
from diffretriever.schemas.settings import JobConfig
from diffretriever.studies.reproduction.hours import RowNeeds, needs_of
from diffretriever.studies.reproduction.plan import make_plan
from tests.jobs.test_command_lines import JOBS
from tests.studies.reproduction.cases import make_job
from tools.random_paper import RandomPaperJob

PAGE = (Path(__file__).parents[3] / "docs" / "reproducing.md").read_text("utf-8")
PROGRAMS: dict[str, type[JobConfig]] = {
    **{f"jobs/{name}.py": config for name, config in JOBS.items()},
    "-m benchmarks.latency": LatencyBenchmark,
    "-m tools.random_paper": RandomPaperJob,
}
COMMANDS = re.findall(r"^ *(?:\$ )?python ((?:-m )?\S+)(.*)$", PAGE, re.MULTILINE)
RATE = 200.0
SHARED = {"main-beir7": "beir7-modes"}
"""Tables that the page has in one line."""


@pytest.mark.parametrize(("program", "flags"), COMMANDS, ids=lambda text: text[:60])
def test_every_command_is_understood(program: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = shlex.split(flags)
    for text in given:
        if "=" in text or text == "COLLECTIONS":
            (tmp_path / text.rpartition("=")[2]).mkdir(parents=True, exist_ok=True)
    PROGRAMS[program].from_command_line(given)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[RowNeeds]:
    """What every row needs where nothing is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        root = tmp_path_factory.mktemp("root")
        return needs_of(make_plan(make_job(root / "output", root)(protocol="authors", plan=True)), RATE)


def taken(rows: list[RowNeeds]) -> tuple[str, str]:
    """GPU hours and GB, an index that rows share once."""
    hours = {name: value for row in rows for name, value in row.hours.items()}
    stored = {name: value for row in rows for name, value in row.stored.items()}
    return f"{sum(hours.values()):,.1f}", f"{sum(stored.values()) / 1e9:,.1f}"


def test_hours_and_bytes_are_those_of_the_plan(rows: list[RowNeeds]) -> None:
    hours, size = taken(rows)
    assert f"{len(rows)} of {len(rows)} rows; all of them take {hours} and {size} GB" in PAGE
    tables = {row.table for row in rows}
    assert tables
    for name in tables - set(SHARED.values()):
        own = [row for row in rows if row.table == name]
        (line,) = re.findall(rf"^\| `{name}`.*$", PAGE, re.MULTILINE)
        assert line.endswith(f"| {len(own)} | {' | '.join(taken(own))} |"), name
        assert name not in SHARED or f"`{SHARED[name]}`" in line
    for one, other in SHARED.items():
        assert taken([r for r in rows if r.table == one]) == taken([r for r in rows if r.table == other])
