"""Progress of loops: a live line in a terminal, or a plain line every ten seconds in a log."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tqdm import tqdm

T = TypeVar("T")
if TYPE_CHECKING:
    Bar = tqdm[NoReturn]
else:
    Bar = tqdm

_LOG_EVERY_SECONDS = 10.0
_QUIET_SECONDS = 2.0
_shows = False
# Without it, tqdm makes a semaphore that processes share.
tqdm.set_lock(threading.RLock())


@cache
def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged it before."""
    logging.getLogger(__name__).warning("%s", text)


def show_progress() -> None:
    """Enable quiet progress in this process; for jobs, not for workers and servers."""
    global _shows  # noqa: PLW0603 (what a process is for does not change)
    _shows = True


class Progress(Bar):
    """A progress bar with rate and remaining time."""

    monitor_interval = 0

    def __init__(
        self, label: str, total: int | None, *, unit: str = "passages", done: int = 0, quiet: bool = False
    ) -> None:
        """Show the first line, unless `quiet`.

        Args:
            label: name of the task, such as `writing runs`.
            total: number of units, if known.
            unit: unit in the plural.
            done: units finished before.
            quiet: show progress only after two seconds and after `show_progress`.
        """
        self._tokens = self._padded = 0
        self._is_live, self._is_shown = sys.stderr.isatty(), False
        super().__init__(
            desc=label,
            total=total,
            initial=done,
            unit=f" {unit}",
            file=sys.stderr,
            disable=quiet and not _shows,
            delay=_QUIET_SECONDS if quiet else 0,
            mininterval=0.1 if self._is_live else _LOG_EVERY_SECONDS,
            miniters=1,
            dynamic_ncols=True,
        )

    def update(self, n: float | None = 1, tokens: int = 0, padded_tokens: int = 0) -> None:
        """Count finished units and, for encoding, tokens without and with padding."""
        self._tokens += tokens
        self._padded += padded_tokens
        if self._padded:
            self.set_postfix_str(f"{100 * (1 - self._tokens / self._padded):.1f} % padding", refresh=False)
        super().update(n)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Redraw the live line, or print a log line."""
        self._is_shown = True
        if self._is_live:
            super().display(msg, pos)
        else:
            print(self, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Show the last state, if any was shown."""
        if not self._is_live:
            if self._is_shown and not self.disable:
                self.display()
            self.disable = True
        super().close()


def track(
    items: Iterable[T], label: str, unit: str, total: int | None = None, size: Callable[[T], int] | None = None
) -> Iterator[T]:
    """Yield the items, with a progress bar after two seconds.

    `size` returns the number of units of an item (default: one); `total` is the sum over all items, if known.
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    with Progress(label, count, unit=unit, quiet=True) as progress:
        for item in items:
            yield item
            progress.update(1 if size is None else size(item))
