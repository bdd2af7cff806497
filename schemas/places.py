"""Where an index, a file or a folder is: a path, or the URI of an object store.

A `file:` URI is the path that it names, and a leading `~` is a home folder. Reading and writing at a place is
`diffretriever.core.files`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema


def plain_place(place: str) -> str:
    """Return the path that a `file:` URI names, percent-encoded characters decoded; of other texts, expand `~`.

    Raises:
        ValueError: the URI names another machine, no absolute path, or has a query or fragment.
    """
    if not place.lower().startswith("file:/"):
        # `Path` raises where there is no such user.
        return os.path.expanduser(place)  # noqa: PTH111
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


class StorePath:
    """The URI of a file or folder on an object store, put together as a `Path` is: `folder / "name"`."""

    __slots__ = ("_uri",)

    def __init__(self, uri: str) -> None:
        """Take a URI such as `s3://bucket/folder`; slashes at its end say nothing.

        Raises:
            ValueError: it names no bucket, or has a query or fragment.
        """
        scheme, _, rest = uri.partition("://")
        if not scheme or not rest.strip("/") or rest.startswith("/"):
            raise ValueError(f"{uri} names no bucket: give a URI such as s3://bucket/folder, or a path")
        if "?" in rest or "#" in rest:
            raise ValueError(
                f"{uri}: write ? as %3F and # as %23. Endpoint, region and credentials come from the environment "
                "(AWS_ENDPOINT_URL, AWS_REGION, …)"
            )
        self._uri = uri.rstrip("/")

    @property
    def name(self) -> str:
        """What follows the last slash; of a bucket itself, its name."""
        return self._uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on, such as `.gz`."""
        return Path(self.name).suffix

    @property
    def parent(self) -> StorePath:
        """The folder; a bucket is its own."""
        above = self._uri.rpartition("/")[0]
        return self if above.endswith("/") else StorePath(above)

    def with_name(self, name: str) -> StorePath:
        """Return the place beside this one that has another name."""
        return self.parent / name

    def absolute(self) -> StorePath:
        """Return this place: a URI depends on no current folder."""
        return self

    def __truediv__(self, below: str) -> StorePath:
        return StorePath(f"{self._uri}/{below}")

    def __str__(self) -> str:
        return self._uri

    def __repr__(self) -> str:
        return f"StorePath('{self._uri}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and self._uri == other._uri

    def __lt__(self, other: StorePath) -> bool:
        return self._uri < other._uri

    def __hash__(self) -> int:
        return hash(self._uri)


def as_place(place: str | Path | StorePath) -> Path | StorePath:
    """Return the path, `~` expanded, or the object-store URI that a text names; a path or URI is taken as well.

    Raises:
        ValueError: a `file:` URI that names no path of this machine, or an object-store URI without a bucket.
    """
    if isinstance(place, StorePath):
        return place
    plain = plain_place(str(place))
    return StorePath(plain) if "://" in plain else Path(plain)


def _checked_place(value: Any) -> Path | StorePath:
    if not isinstance(value, str | Path | StorePath):
        raise ValueError("give a path or the URI of an object store")
    return as_place(value)


IndexPlace: TypeAlias = Annotated[str, AfterValidator(plain_place)]
"""Folder or object-store URI of an index."""

Place: TypeAlias = Annotated[
    Path | StorePath,
    PlainValidator(_checked_place),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""Path or object-store URI of a file or folder. A setting of the type `Path` takes no URI; see `JobConfig`."""
