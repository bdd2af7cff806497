"""How far a job is: one live line in a terminal, plain lines now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import NoReturn, TextIO

from tqdm import tqdm

_LOG_EVERY_SECONDS = 10.0
_RATE_WINDOW_SECONDS = 60.0
# Several encoders finish blocks in bursts: a rate over fewer of them says nothing.
_RATE_BLOCKS = 8


def bar(label: str, unit: str, total: int | None = None) -> tqdm[NoReturn]:
    """Return a bar that counts `unit`s, `total` of them where that is known; a log file gets a line now and then."""
    return tqdm(total=total, desc=label, unit=unit, mininterval=0.5 if sys.stderr.isatty() else _LOG_EVERY_SECONDS)


class Progress:
    """Counts passages and tokens of finished blocks and shows rates over the last minute, or the last blocks."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._done = self._tokens = self._padded = 0
        self._logged = time.monotonic()
        self._recent: deque[tuple[float, int, int]] = deque()
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            form = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{postfix}]"
            self._bar = tqdm(total=self._total, desc=self._label, file=self._stream, bar_format=form)
            self._bar.set_postfix_str("starting")
        else:
            self._print(f"{self._label}: {self._total:,} passages to do")
        return self

    def update(self, passages: int, tokens: int, padded_tokens: int) -> None:
        """Count one finished block."""
        now = time.monotonic()
        self._done += passages
        self._tokens += tokens
        self._padded += padded_tokens
        # The first block also waited for the encoders to load: rates count from its end.
        self._recent.append((now, self._done, self._tokens))
        while len(self._recent) > _RATE_BLOCKS and now - self._recent[0][0] > _RATE_WINDOW_SECONDS:
            self._recent.popleft()
        if self._bar is not None:
            self._bar.set_postfix_str(self._rates(now))
            self._bar.update(passages)
        elif now - self._logged >= _LOG_EVERY_SECONDS or self._done == self._total:
            self._logged = now
            share = 100 * self._done // max(1, self._total)
            self._print(f"{self._label}: {self._done:,}/{self._total:,} ({share} %), {self._rates(now)}")

    def _rates(self, now: float) -> str:
        if len(self._recent) == 1:
            return "first block done"
        then, done, tokens = self._recent[0]
        seconds = max(now - then, 1e-9)
        rate = (self._done - done) / seconds
        parts = [f"ETA {_clock((self._total - self._done) / rate if rate else 0)}", f"{rate:,.1f} passages/s"]
        if self._padded:
            parts.append(f"{(self._tokens - tokens) / seconds:,.0f} tokens/s")
            parts.append(f"{100 * (1 - self._tokens / self._padded):.1f} % padding")
        return ", ".join(parts)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
