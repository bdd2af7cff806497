"""Retrievers of other installed packages, found by entry points, never by a path.

A package declares one in its pyproject.toml, and a config selects it by `method: PACKAGE:NAME`:

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
"""Entry-point group: name → class of an encoder."""
MISSING = "package_missing"
"""Type of the error for a missing package or entry point."""
_METHOD = re.compile(r"([A-Za-z0-9][\w.-]*):([A-Za-z0-9][\w.-]*)", re.ASCII)


def names_installed(method: Any) -> bool:
    """Return whether a method has the form PACKAGE:NAME."""
    return isinstance(method, str) and _METHOD.fullmatch(method) is not None


@cache
def installed_encoder(method: str) -> type[Any]:
    """Import and return the encoder class of PACKAGE:NAME. Only installed packages are imported.

    Raises:
        PydanticCustomError: a `ValueError`; the package is not installed or has no such entry point.
        ValueError: the class cannot be imported or has no `config_class` for this method.
    """
    package, _, name = method.partition(":")
    try:
        offered = metadata.distribution(package).entry_points.select(group=GROUP)
    except metadata.PackageNotFoundError:
        raise PydanticCustomError(
            MISSING,
            f"the retriever '{method}' needs the package {package}, which is not installed here: install it, if you "
            "trust it",
        ) from None
    if name not in offered.names:
        text = f"the package {package} has no entry point '{name}' in the group {GROUP}: install a version with it"
        raise PydanticCustomError(MISSING, text)
    try:
        encoder: type[Any] = offered[name].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the retriever '{method}' cannot be imported: {error}") from error
    config = getattr(encoder, "config_class", None)
    fields = getattr(config, "model_fields", {})
    if "method" not in fields or fields["method"].default != method:
        raise ValueError(f"'{method}': {offered[name].value} needs a config_class with method: Literal['{method}']")
    return encoder
