"""Paths and object-store URIs of indexes, files and folders; `diffretriever.core.files` reads and writes them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema


def plain_location(text: str) -> str:
    """Return the decoded path of a `file:` URI, or expand the `~` of any other text.

    Raises:
        ValueError: the URI has another host, a relative path, a query or a fragment.
    """
    if not text.lower().startswith("file:/"):
        # `Path` raises where there is no such user.
        return os.path.expanduser(text)  # noqa: PTH111
    parts = urlsplit(text)
    if parts.netloc.lower() not in {"", "localhost"}:
        raise ValueError(f"{text} is a file on the host '{parts.netloc}': give a local path, such as file:///folder")
    if "?" in text or "#" in text:
        raise ValueError(f"{text}: write ? as %3F and # as %23 in a file URI, or give the plain path")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{text}: percent-encoded characters must be UTF-8: give the plain path") from None
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{text} has no absolute path: write file:///folder")
    return path


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """The URI of a file or folder on an object store; joins like a `Path`: `folder / "name"`.

    Raises:
        ValueError: the URI has no bucket, or has a query or fragment.
    """

    uri: str
    """Such as `s3://bucket/folder`; trailing slashes are ignored."""

    def __post_init__(self) -> None:
        scheme, _, rest = self.uri.partition("://")
        if not scheme or not rest.strip("/") or rest.startswith("/"):
            raise ValueError(f"{self.uri} has no bucket: give a URI such as s3://bucket/folder, or a path")
        if "?" in rest or "#" in rest:
            raise ValueError(
                f"{self.uri}: write ? as %3F and # as %23. Endpoint, region and credentials come from the environment "
                "(AWS_ENDPOINT_URL, AWS_REGION, …)"
            )
        object.__setattr__(self, "uri", self.uri.rstrip("/"))

    @property
    def name(self) -> str:
        """Last part of the URI, or the name of the bucket."""
        return self.uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """File extension, such as `.gz`."""
        return Path(self.name).suffix

    @property
    def parent(self) -> StorePath:
        """Parent folder; a bucket's parent is the bucket."""
        parent = self.uri.rpartition("/")[0]
        return self if parent.endswith("/") else StorePath(parent)

    def with_name(self, name: str) -> StorePath:
        """Return the URI in the same folder with another name."""
        return self.parent / name

    def absolute(self) -> StorePath:
        """Return the URI itself, which is always absolute."""
        return self

    def __truediv__(self, below: str) -> StorePath:
        return StorePath(f"{self.uri}/{below}")

    def __str__(self) -> str:
        return self.uri


def parse_location(location: str | Path | StorePath) -> Path | StorePath:
    """Return a path, with `~` expanded, or an object-store URI.

    Raises:
        ValueError: a `file:` URI has no local path, or an object-store URI has no bucket.
    """
    if isinstance(location, StorePath):
        return location
    plain = plain_location(str(location))
    return StorePath(plain) if "://" in plain else Path(plain)


def _validate_location(value: Any) -> Path | StorePath:
    if not isinstance(value, str | Path | StorePath):
        raise ValueError("give a path or the URI of an object store")
    return parse_location(value)


IS_PATH = AfterValidator(plain_location)
IndexLocation: TypeAlias = Annotated[str, IS_PATH]
"""Folder or object-store URI of an index."""

Location: TypeAlias = Annotated[
    Path | StorePath,
    PlainValidator(_validate_location),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""Path or object-store URI of a file or folder. Settings of type `Path` accept only paths."""
