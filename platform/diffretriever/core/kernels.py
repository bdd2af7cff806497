"""Functions that numba compiles to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function without the GIL, and keeps its machine code on disk.

    numba writes to `__pycache__` beside the source, to NUMBA_CACHE_DIR, or to the user's cache folder. If all of them
    are read-only, as in some containers, every process compiles the function again.
    `options` are further options of `numba.njit`, such as `fastmath` and `inline`.
    """

    def compiled(function: F) -> F:
        try:
            made: F = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:
            # "no locator available": numba found no folder that it may write to.
            made = njit(nogil=True, **options)(function)
        return made

    return compiled
