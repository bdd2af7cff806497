"""In which fields two values differ, named for people."""

from __future__ import annotations

from typing import Any


def differing_fields(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what differs, as `outer.inner: one != other`, sorted; a missing field counts as None."""
    ours, theirs = _flatten(one), _flatten(other)
    keys = sorted(ours.keys() | theirs.keys())
    return [f"{k}: {ours.get(k)} != {theirs.get(k)}" for k in keys if ours.get(k) != theirs.get(k)]


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(_flatten(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat
