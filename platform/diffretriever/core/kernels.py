"""Functions that numba compiles to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function with `numba.njit`, without the GIL, and caches the machine code.

    If numba's cache folders are read-only, as in some containers, every process compiles the function again. `options`
    are passed to `numba.njit`.
    """

    def compile_cached(function: F) -> F:
        try:
            compiled: F = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:
            # "no locator available": numba found no folder that it may write to.
            compiled = njit(nogil=True, **options)(function)
        return compiled

    return compile_cached
