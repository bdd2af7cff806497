"""What jobs show of their progress, in a log and in a terminal."""

from __future__ import annotations

import pytest

from diffretriever.core import progress
from diffretriever.core.progress import Progress, track


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by hand."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(progress, "_shows", True)
    return now


def test_a_log_gets_a_line_every_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("corpus", 600) as shown:
        for _ in range(6):
            clock[0] += 6
            shown.update(100, 2000, 2500)
    first, *lines, last = capsys.readouterr().err.splitlines()
    assert first.startswith("corpus:   0%")
    assert [line.partition("|")[0] for line in lines] == ["corpus:  33%", "corpus:  67%", "corpus: 100%"]
    assert "200/600 [00:12<00:24, 16.67 passages/s, 20.0 % padding]" in lines[0]
    assert "600/600" in last


def test_a_quiet_loop_is_shown_after_two_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in track(range(3), "measuring", "runs"):
        clock[0] += 0.6
    assert not capsys.readouterr().err
    for _ in track(iter(["ab", "cde"]), "reading", "letters", size=len):
        clock[0] += 20
    assert [line.split(" [")[0] for line in capsys.readouterr().err.splitlines()] == [
        "reading: 2 letters",
        "reading: 5 letters",
        "reading: 5 letters",
    ]


def test_a_loop_is_silent_in_a_server(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_shows", False)
    for item in track([5.0, 50.0], "writing runs", "queries"):
        clock[0] += item
    assert not capsys.readouterr().err
