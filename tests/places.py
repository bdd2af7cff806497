"""What tests do with places of jobs."""

from __future__ import annotations

from pathlib import Path

from diffretriever.schemas.places import StorePath


def local(place: Path | StorePath) -> Path:
    """Return a place that is known to be a path."""
    assert isinstance(place, Path)
    return place
