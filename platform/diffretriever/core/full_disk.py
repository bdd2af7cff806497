"""Detect a full disk among the causes of an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Rust's and Ray's errors have the system's text without its number; NumPy's `tofile` has neither.
_TEXTS = (*map(os.strerror, _NUMBERS), " requested and ")


def full_disk(error: BaseException) -> BaseException | None:
    """Return the first cause that is a full disk, an exhausted quota or a file-size limit, or None."""
    return next(filter(_is_full_disk, causes(error)), None)


def _is_full_disk(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in _NUMBERS) or any(text in str(error) for text in _TEXTS)


def causes(error: BaseException, seen: frozenset[int] = frozenset()) -> Iterator[BaseException]:
    """Yield an error and its causes; errors wrapped by Ray come before their wrapper."""
    if id(error) in seen:
        return
    seen |= {id(error)}
    wrapped = getattr(error, "cause", None)
    context = None if error.__suppress_context__ else error.__context__
    if isinstance(wrapped, BaseException):
        yield from causes(wrapped, seen)
    yield error
    for cause in (error.__cause__, context):
        if cause is not None:
            yield from causes(cause, seen)
