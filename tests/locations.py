"""Paths of jobs in tests."""

from __future__ import annotations

from pathlib import Path

from diffretriever.schemas.locations import StorePath


def local(place: Path | StorePath) -> Path:
    """Return the path of a location that is not in an object store."""
    assert isinstance(place, Path)
    return place
