"""Paths and object-store URIs of indexes, files and folders; `diffretriever.core.files` reads and writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema


def plain_place(place: str) -> str:
    """Return the decoded path of a `file:` URI, or expand the `~` of any other text.

    Raises:
        ValueError: the URI has another host, a relative path, a query or a fragment.
    """
    if not place.lower().startswith("file:/"):
        # `Path` raises where there is no such user.
        return os.path.expanduser(place)  # noqa: PTH111
    parts = urlsplit(place)
    if parts.netloc.lower() not in {"", "localhost"}:
        raise ValueError(f"{place} is a file on the host '{parts.netloc}': give a local path, such as file:///folder")
    if "?" in place or "#" in place:
        raise ValueError(f"{place}: write ? as %3F and # as %23 in a file URI, or give the plain path")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{place}: percent-encoded characters must be UTF-8: give the plain path") from None
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{place} has no absolute path: write file:///folder")
    return path


class StorePath:
    """The URI of a file or folder on an object store; joins like a `Path`: `folder / "name"`."""

    __slots__ = ("_uri",)

    def __init__(self, uri: str) -> None:
        """Parse a URI such as `s3://bucket/folder`; trailing slashes are ignored.

        Raises:
            ValueError: the URI has no bucket, or has a query or fragment.
        """
        scheme, _, rest = uri.partition("://")
        if not scheme or not rest.strip("/") or rest.startswith("/"):
            raise ValueError(f"{uri} has no bucket: give a URI such as s3://bucket/folder, or a path")
        if "?" in rest or "#" in rest:
            raise ValueError(
                f"{uri}: write ? as %3F and # as %23. Endpoint, region and credentials come from the environment "
                "(AWS_ENDPOINT_URL, AWS_REGION, …)"
            )
        self._uri = uri.rstrip("/")

    @property
    def name(self) -> str:
        """Last part of the URI, or the name of the bucket."""
        return self._uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """File extension, such as `.gz`."""
        return Path(self.name).suffix

    @property
    def parent(self) -> StorePath:
        """Parent folder; a bucket's parent is the bucket."""
        parent = self._uri.rpartition("/")[0]
        return self if parent.endswith("/") else StorePath(parent)

    def with_name(self, name: str) -> StorePath:
        """Return the URI in the same folder with another name."""
        return self.parent / name

    def absolute(self) -> StorePath:
        """Return the URI itself, which is always absolute."""
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
    """Return a path, with `~` expanded, or an object-store URI.

    Raises:
        ValueError: a `file:` URI has no local path, or an object-store URI has no bucket.
    """
    if isinstance(place, StorePath):
        return place
    plain = plain_place(str(place))
    return StorePath(plain) if "://" in plain else Path(plain)


def _checked_place(value: Any) -> Path | StorePath:
    if not isinstance(value, str | Path | StorePath):
        raise ValueError("give a path or the URI of an object store")
    return as_place(value)


IS_PATH = AfterValidator(plain_place)
IndexPlace: TypeAlias = Annotated[str, IS_PATH]
"""Folder or object-store URI of an index."""

Place: TypeAlias = Annotated[
    Path | StorePath,
    PlainValidator(_checked_place),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""Path or object-store URI of a file or folder. Settings of type `Path` accept only paths."""
