"""Latencies that were measured: what `python -m benchmarks.latency` writes and the paper's figures read."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model


class Point(Model):
    """A point of a line."""

    x: PositiveInt
    """Tokens of the input, or passages."""
    ms: PositiveFloat
    """Mean over the timed runs."""


class Line(Model):
    """How the time of one system grows."""

    what: Literal["encoding", "search"]
    method: str
    backbone: str
    representations: Literal["single", "multi", "zero-shot"]
    """`multi`: what is fine-tuned, 4 generated tokens or the fixed budget; `zero-shot`: 20 generated tokens."""
    points: tuple[Point, ...]
    """Ascending."""


class Latencies(Model):
    """The whole file."""

    device: str
    lines: tuple[Line, ...]
    query_tokens: PositiveInt = 32
    """Length at which a query's encoding is read off."""

    def of_a_query(self, method: str, backbone: str, representations: str, passages: int) -> float | None:
        """Return milliseconds of encoding and search together, or None where one was not measured there."""
        encoding = self.points("encoding", method, backbone, representations)
        search = {point.x: point.ms for point in self.points("search", method, backbone, representations)}
        near = min(encoding, key=lambda point: abs(point.x - self.query_tokens), default=None)
        return None if near is None or passages not in search else near.ms + search[passages]

    def points(
        self, what: Literal["encoding", "search"], method: str, backbone: str, representations: str
    ) -> list[Point]:
        """Return encoding by length or search by number of passages; empty where it was not measured."""
        wanted = what, method, backbone, representations
        found = (line for line in self.lines if (line.what, line.method, line.backbone, line.representations) == wanted)
        return list(next((line.points for line in found), ()))
