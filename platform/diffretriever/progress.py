"""How far work is: one live line in a terminal, plain lines now and then where there is none.

A job whose progress everybody wants to see says so at once. Everything else is quiet: it shows itself once it has taken
two seconds, and only in a process that a person has started, which says `show_progress`. In workers, in servers and in
other programs the same loops are silent.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import NoReturn, TextIO, TypeVar

from tqdm import tqdm

from diffretriever.schemas.base import counted, shortened

T = TypeVar("T")

_LOG_EVERY_SECONDS = 10.0
# What takes less says nothing.
_QUIET_SECONDS = 2.0
_RATE_WINDOW_SECONDS = 60.0
# Several encoders finish blocks in bursts: a rate over fewer of them says nothing.
_RATE_BLOCKS = 8
# Of updates that come faster, only some are kept for the rate.
_LEAST_BETWEEN_SECONDS = 0.2
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_COUNT = "{desc}: {n_fmt} [{elapsed}{postfix}]"
_COLUMNS = 80
"""Of a terminal that does not say."""
_BESIDE = 31
"""Columns of a line for the shortest bar, for how long it has taken, and for what stands between."""

_shows = False


def show_progress() -> None:
    """From now on, show in this process what takes longer than two seconds."""
    global _shows  # noqa: PLW0603 (what a process is for does not change)
    _shows = True


def track(
    items: Iterable[T], label: str, unit: str, total: int | None = None, size: Callable[[T], int] | None = None
) -> Iterator[T]:
    """Yield the items, and show how many of them are done once that takes longer than two seconds.

    Args:
        items: of any kind.
        label: what is done with them, such as `writing runs`.
        unit: what is counted, in the plural.
        total: how many there are; None is what `len` says, or unknown.
        size: how many units an item is; None is one.
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    with Progress(label, count, unit=unit, quiet=True) as progress:
        for item in items:
            yield item
            progress.update(1 if size is None else size(item))


class Progress:
    """Counts what is done and shows rates over the last minute, or the last updates."""

    def __init__(
        self,
        label: str,
        total: int | None,
        stream: TextIO | None = None,
        *,
        unit: str = "passages",
        done: int = 0,
        quiet: bool = False,
    ) -> None:
        """Get ready.

        Args:
            label: what is done.
            total: how many units there are; None where nobody knows.
            stream: where the lines go; default: standard error.
            unit: what is counted, in the plural.
            done: how many were done before.
            quiet: say nothing in the first two seconds, nor where nobody looks; rates count from the start then, else
                from the first update.
        """
        self._label, self._total, self._unit = label, total, unit
        self._stream = stream or sys.stderr
        self._done, self._tokens, self._padded = done, 0, 0
        self._logged = self._began = time.monotonic()
        self._quiet, self._is_silent = quiet, quiet and not _shows
        self._recent: deque[tuple[float, int, int]] = deque([(self._began, done, 0)] if quiet else [])
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> Progress:
        if self._is_silent:
            return self
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total,
                initial=self._done,
                desc=self._fitting([])[0],
                file=self._stream,
                bar_format=_COUNT if self._total is None else _BAR,
                dynamic_ncols=True,
                delay=_QUIET_SECONDS if self._quiet else 0,
            )
            self._bar.set_postfix_str("starting", refresh=not self._quiet)
        elif not self._quiet and self._total is not None:
            self._print(f"{self._label}: {counted(self._total - self._done, self._unit)} to do")
        return self

    def update(self, count: int = 1, tokens: int = 0, padded_tokens: int = 0) -> None:
        """Count units that are done; of encoded ones also their tokens, without and with padding."""
        if self._is_silent:
            return
        now = time.monotonic()
        self._done += count
        self._tokens += tokens
        self._padded += padded_tokens
        # The first block also waited for the encoders to load: rates count from its end.
        if not self._recent or now - self._recent[-1][0] >= _LEAST_BETWEEN_SECONDS:
            self._recent.append((now, self._done, self._tokens))
        while len(self._recent) > _RATE_BLOCKS and now - self._recent[0][0] > _RATE_WINDOW_SECONDS:
            self._recent.popleft()
        if self._bar is not None:
            label, rates = self._fitting(self._rates(now))
            self._bar.set_description_str(label, refresh=False)
            self._bar.set_postfix_str(rates, refresh=not self._quiet)
            self._bar.update(count)
        elif self._is_due(now):
            self._logged = now
            self._print(f"{self._label}: {self._counted()}, {', '.join(self._rates(now))}")

    def _is_due(self, now: float) -> bool:
        if self._done == self._total:
            return not self._quiet or now - self._began >= _QUIET_SECONDS
        return now - self._logged >= _LOG_EVERY_SECONDS

    def _counted(self) -> str:
        if self._total is None:
            return counted(self._done, self._unit)
        return f"{self._done:,}/{self._total:,} ({100 * self._done // max(1, self._total)} %)"

    def _columns(self) -> int:
        """Return how wide the terminal is now."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS

    def _fitting(self, rates: list[str]) -> tuple[str, str]:
        """Return the label, and the first of the rates, that leave room for a bar in the terminal's line."""
        room = self._columns() - _BESIDE - 2 * len(str(self._total or self._done))
        least = min(len(self._label), room // 2)
        while rates and least + len(", ".join(rates)) > room:
            rates = rates[:-1]
        return shortened(self._label, room - len(", ".join(rates))), ", ".join(rates)

    def _rates(self, now: float) -> list[str]:
        then, done, tokens = self._recent[0]
        if then == now:
            return ["first block done"]
        seconds = now - then
        rate = (self._done - done) / seconds
        parts = [f"{rate:,.1f} {self._unit}/s"]
        if self._total is not None and self._done < self._total:
            parts.insert(0, f"ETA {_clock((self._total - self._done) / rate if rate else 0)}")
        if self._padded:
            parts.append(f"{(self._tokens - tokens) / seconds:,.0f} tokens/s")
            parts.append(f"{100 * (1 - self._tokens / self._padded):.1f} % padding")
        return parts

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
