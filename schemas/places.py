"""Where an index or a file is: a path, or the URI of an object store. A `file:` URI is the path that it names."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator


def plain_place(place: str) -> str:
    """Return the path that a `file:` URI names, percent-encoded characters decoded; anything else as it is.

    Raises:
        ValueError: the URI names another machine, no absolute path, or has a query or fragment.
    """
    if not place.lower().startswith("file:/"):
        return place
    parts = urlsplit(place)
    if parts.netloc.lower() not in {"", "localhost"}:
        raise ValueError(
            f"{place} names a file of the machine '{parts.netloc}': give a path of this one, as file:///folder"
        )
    if "?" in place or "#" in place:
        raise ValueError(f"{place}: write ? as %3F and # as %23 in a file URI, or give the plain path")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{place}: percent-encoded characters must be UTF-8: give the plain path") from None
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{place} names no absolute path: give one, as file:///folder")
    return path


IndexPlace: TypeAlias = Annotated[str, AfterValidator(plain_place)]
"""Folder or object-store URI of an index."""
