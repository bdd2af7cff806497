"""Numbers as reports print them: .432, +.012, [+.004, +.020]."""

from __future__ import annotations

from schemas.analyse import Interval

_MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
_SMALLEST_P = 0.001


def points(value: float) -> str:
    """Write a measure as tables of retrieval papers do, without the 0 before the point: .432."""
    text = f"{abs(value):.3f}"
    return (_MINUS if value < 0 and text != "0.000" else "") + text.removeprefix("0")


def signed(value: float) -> str:
    """Write a difference with its sign: +.012."""
    text = points(value)
    return text if text.startswith(_MINUS) else f"+{text}"


def between(interval: Interval) -> str:
    """Write an interval of differences: [+.004, +.020]."""
    return f"[{signed(interval[0])}, {signed(interval[1])}]"


def with_interval(value: float | None, interval: Interval | None) -> str:
    """Write a difference with its interval, or a dash where there is none."""
    return NOTHING if value is None or interval is None else f"{signed(value)} {between(interval)}"


def level_with_interval(value: float, interval: Interval) -> str:
    """Write a measure with its interval: .432 [.404, .460]."""
    return f"{points(value)} [{points(interval[0])}, {points(interval[1])}]"


def share(value: float | None) -> str:
    """Write a share in percent, or a dash where there is none."""
    return NOTHING if value is None else f"{100 * value:.0f}%".replace("-", _MINUS)


def p_value(p: float) -> str:
    """Write a p-value to three places; below .001 only that."""
    return f"<{points(_SMALLEST_P)}" if p < _SMALLEST_P else points(p)
