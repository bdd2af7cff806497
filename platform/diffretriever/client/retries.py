"""When a request is sent once more, and how long to wait before it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

BUSY = frozenset({429, 503})
"""Answers of a service that has not done what it was asked, and may do it later."""
_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a client is.

    Attributes:
        attempts: most times that a request is sent, at least 1.
        first_wait: seconds before the second time; it doubles from then on.
        longest_wait: seconds; a service that asks for more is not asked again.
    """

    attempts: int = 4
    first_wait: float = 0.25
    longest_wait: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}: give at least 1, which is no retry")
        if not 0 < self.first_wait <= self.longest_wait:
            raise ValueError("first_wait must be more than 0 seconds and no more than longest_wait")

    def wait(self, sent: int, asked: float | None = None) -> float | None:
        """Return the seconds to wait after the request was sent `sent` times, or None to give up.

        `asked` is what the service asked for. Else the time is drawn between half and all of the doubled wait, so
        that many clients turned away together do not come back together.
        """
        if sent >= self.attempts:
            return None
        if asked is not None:
            return asked if asked <= self.longest_wait else None
        doubled = min(self.first_wait * 2.0 ** min(sent - 1, 64), self.longest_wait)
        return _RANDOM.uniform(doubled / 2, doubled)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that `Retry-After` asks for, a number or a date (RFC 9110 §10.2.3); None if it is no such."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
