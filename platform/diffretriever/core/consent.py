"""Whose Python code may run here: only that of models which the person at hand has named, in this very command.

A retriever's `remote_code` says that a model needs the code of its repository. It may come from anywhere: an index's
manifest, a YAML file, a training. So it allows nothing. What allows it is the environment of this process, which
`--trust-code` and `trust_code` add to, and which no file is ever read into.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from diffretriever.schemas.places import plain_place
from diffretriever.schemas.settings import TRUST_VARIABLE

_FOLDERS = ("/", "./", "../", "~")


def trust_code(sources: Iterable[str]) -> None:
    """Let the Python code of these models run in this process and in the Ray workers that it starts from now on.

    A source is a hub id, `ID@REVISION` where a revision is asked for, or a folder that begins with `/`, `./`, `../`
    or `~`. A name without any of these is never a folder: what lies in the current directory cannot pose as the hub.
    """
    os.environ[TRUST_VARIABLE] = ",".join(trusted_sources(sources))


def trusted_sources(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the sources that are trusted here, and `more`; folders as resolved absolute paths."""
    given = [*os.environ.get(TRUST_VARIABLE, "").split(","), *more]
    return tuple(dict.fromkeys(_named(source.strip()) for source in given if source.strip()))


def check_trusted(source: str, revision: str | None) -> None:
    """Return if the code of this model may run here.

    A revision is part of the name: on the hub anybody can add one to anybody's model, as a pull request.

    Raises:
        ValueError: nobody has said so in this command.
    """
    folder = Path(plain_place(source))
    name = str(folder.resolve()) if folder.is_dir() else source + (f"@{revision}" if revision else "")
    if name not in trusted_sources():
        raise ValueError(
            f"the retriever's config asks for the Python code of '{source}' to be run (remote_code: true), which could "
            "do anything that you can do on this machine. A config, an index's included, does not allow that: you do. "
            f"If you have read that code and trust it, add `--trust-code {name}` to the command, or set "
            f"{TRUST_VARIABLE}={name}."
        )


def _named(source: str) -> str:
    return str(Path(plain_place(source)).resolve()) if source.startswith(_FOLDERS) else source
