"""What jobs say of their progress where there is no terminal."""

from __future__ import annotations

import io
import os

import pytest

from diffretriever import progress
from diffretriever.progress import Progress, track


@pytest.mark.parametrize(
    ("total", "unit", "said"), [(1, "passages", "1 passage"), (1, "queries", "1 query"), (2000, "steps", "2,000 steps")]
)
def test_one_of_a_unit_is_in_the_singular(total: int, unit: str, said: str) -> None:
    stream = io.StringIO()
    with Progress("corpus", total, stream, unit=unit):
        assert stream.getvalue() == f"corpus: {said} to do\n"


def test_rates_of_blocks_that_come_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 200.0, 320.0, 321.0, 440.0, 441.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("corpus", 600, stream) as shown:
        for _ in range(5):
            shown.update(100, 2000, 2500)
    assert stream.getvalue().splitlines() == [
        "corpus: 600 passages to do",
        "corpus: 100/600 (16 %), first block done",
        "corpus: 200/600 (33 %), ETA 08:00, 0.8 passages/s, 17 tokens/s, 20.0 % padding",
        "corpus: 400/600 (66 %), ETA 02:40, 1.2 passages/s, 25 tokens/s, 20.0 % padding",
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by hand."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_loop_shows_itself_once_it_has_taken_a_while(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_shows", True)
    for _ in track(range(40), "writing runs", "queries"):
        clock[0] += 0.6
    for _ in track(range(3), "measuring", "runs"):
        clock[0] += 0.6
    for _ in track(iter(["ab", "cde"]), "reading", "letters", size=len):
        clock[0] += 20
    assert capsys.readouterr().err.splitlines() == [
        "writing runs: 17/40 (42 %), ETA 00:14, 1.7 queries/s",
        "writing runs: 34/40 (85 %), ETA 00:04, 1.7 queries/s",
        "writing runs: 40/40 (100 %), 1.7 queries/s",
        "reading: 2 letters, 0.1 letters/s",
        "reading: 5 letters, 0.1 letters/s",
    ]


def test_a_loop_is_silent_in_a_program_that_nobody_looks_at(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for item in track([5.0, 50.0], "writing runs", "queries"):
        clock[0] += item
    assert not capsys.readouterr().err


def test_a_terminal_gets_one_live_line(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_shows", True)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    for _ in track(range(4), "measuring", "runs"):
        clock[0] += 0.4
    assert not stream.getvalue()
    for _ in track(range(40), "writing runs", "queries"):
        clock[0] += 0.6
    assert "writing runs:  10%" in stream.getvalue()
    assert "ETA 00:21, 1.7 queries/s]" in stream.getvalue()


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_the_line_fits_the_terminal_and_has_a_bar(
    columns: int, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is less wanted gives way: the middle of a long place, then padding and tokens."""
    label = "notes of the gardeners' club → /home/somebody/projects/gardens/indexes/notes"
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(stream, "fileno", lambda: 2)
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda _: (columns, 24))
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((columns, 24)))
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    with Progress(label, 12_000, stream) as shown:
        for _ in range(3):
            clock[0] += 20
            shown.update(1000, 90_000, 100_000)
    lines = [line for line in stream.getvalue().split("\r") if "%" in line]
    assert {len(line.rstrip()) for line in lines} <= {*range(columns + 1)}
    last = lines[-1]
    assert last.startswith("note")
    assert "3000/12000" in last
    assert "notes: " in last
    assert "25%|##" in last
    assert ("ETA 03:00" in last, "passages/s" in last, "padding" in last) == (True, columns > 60, columns > 100)
