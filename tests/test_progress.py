"""What jobs say of their progress where there is no terminal."""

from __future__ import annotations

import io

import pytest

from diffretriever.progress import Progress


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
