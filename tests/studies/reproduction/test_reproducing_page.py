"""docs/reproducing.md: its commands are understood by their jobs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.latency.__main__ import LatencyBenchmark
from diffretriever.schemas.settings import JobConfig
from tests.jobs.test_command_lines import JOBS
from tools.random_paper import RandomPaperJob

PAGE = (Path(__file__).parents[3] / "docs" / "reproducing.md").read_text("utf-8")
PROGRAMS: dict[str, type[JobConfig]] = {
    **{f"jobs/{name}.py": config for name, config in JOBS.items()},
    "-m benchmarks.latency": LatencyBenchmark,
    "-m tools.random_paper": RandomPaperJob,
}
COMMANDS = re.findall(r"^ *(?:\$ )?python ((?:-m )?\S+)(.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("program", "flags"), COMMANDS, ids=lambda text: text[:60])
def test_every_command_is_understood(program: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = shlex.split(flags)
    for text in given:
        if "=" in text or text == "COLLECTIONS":
            (tmp_path / text.rpartition("=")[2]).mkdir(parents=True, exist_ok=True)
    PROGRAMS[program].from_command_line(given)
