"""Permission to run the Python code of a model's repository.

`remote_code: true` in a config states only that a model needs its code; an index or a YAML file can contain it. The
permission is an environment variable of the process, which `--trust-code` and `trust_code` set and files never do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from diffretriever.schemas.locations import plain_location
from diffretriever.schemas.settings import TRUST_VARIABLE

_FOLDERS = ("/", "./", "../", "~")


def trust_code(sources: Iterable[str]) -> None:
    """Allow the Python code of these models in this process and in Ray workers that it starts later.

    A source is a hub id, `ID@REVISION`, or a folder that begins with `/`, `./`, `../` or `~`. Other names are never
    folders, so that a folder in the current directory cannot pose as a hub id.

    Example:
        >>> dr.trust_code(["some/model@main", "./models/mine"])
    """
    os.environ[TRUST_VARIABLE] = ",".join(trusted_sources(sources))


def trusted_sources(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the trusted sources and `more`, with folders as resolved absolute paths."""
    sources = [*os.environ.get(TRUST_VARIABLE, "").split(","), *more]
    return tuple(dict.fromkeys(_named(source.strip()) for source in sources if source.strip()))


def check_trusted(source: str, revision: str | None) -> None:
    """Check that the code of this model may run.

    The revision is part of the name, because anyone can add one to a hub model by a pull request.

    Raises:
        ValueError: the model is not trusted.
    """
    folder = Path(plain_location(source))
    name = str(folder.resolve()) if folder.is_dir() else source + (f"@{revision}" if revision else "")
    if name not in trusted_sources():
        raise ValueError(
            f"the retriever's config asks for the Python code of '{source}' to be run (remote_code: true), which could "
            "do anything that you can do on this machine. A config, an index's included, does not allow that: you do. "
            f"If you have read that code and trust it, add `--trust-code {name}` to the command, or set "
            f"{TRUST_VARIABLE}={name}."
        )


def _named(source: str) -> str:
    return str(Path(plain_location(source)).resolve()) if source.startswith(_FOLDERS) else source
