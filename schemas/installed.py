"""Retrievers in packages of somebody's own, found by entry points of what is installed here, never by a path.

A package offers one in its pyproject.toml, and a config names it as `method: PACKAGE:NAME`:

    [project.entry-points."diffretriever.encoders"]
    NAME = "module:EncoderClass"
"""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from typing import Any

from pydantic_core import PydanticCustomError

GROUP = "diffretriever.encoders"
"""The group of the entry points: name → the class of an encoder."""
MISSING = "package_missing"
"""Type of the error where the package is not installed."""
_METHOD = re.compile(r"([A-Za-z0-9][\w.-]*):([A-Za-z0-9][\w.-]*)", re.ASCII)


def names_installed(method: Any) -> bool:
    """Return whether this is PACKAGE:NAME."""
    return isinstance(method, str) and _METHOD.fullmatch(method) is not None


def package_of(method: str) -> str:
    """Return PACKAGE of PACKAGE:NAME."""
    return method.partition(":")[0]


@cache
def installed_encoder(method: str) -> type[Any]:
    """Return the encoder that PACKAGE:NAME names; its package, which somebody has installed, is imported.

    What is not installed is never imported, whatever an index says.

    Raises:
        PydanticCustomError: the package is not installed, or has no such entry point; a `ValueError` too.
        ValueError: it cannot be imported, or is no encoder with a `config_class` of this method.
    """
    package, _, name = method.partition(":")
    try:
        offered = metadata.distribution(package).entry_points.select(group=GROUP)
    except metadata.PackageNotFoundError:
        raise PydanticCustomError(
            MISSING,
            "the retriever '{method}' is one of the package {package}, which is not installed here: install it, if "
            "you know and trust it",
            {"method": method, "package": package},
        ) from None
    if name not in offered.names:
        raise PydanticCustomError(
            MISSING,
            "the package {package} has no entry point '{name}' in the group {group}: install a version that has",
            {"package": package, "name": name, "group": GROUP},
        )
    try:
        found: type[Any] = offered[name].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the retriever '{method}' cannot be imported: {error}") from error
    config = getattr(found, "config_class", None)
    fields = getattr(config, "model_fields", {})
    if "method" not in fields or fields["method"].default != method:
        raise ValueError(f"'{method}': {offered[name].value} needs a config_class with method: Literal['{method}']")
    return found
