"""Build the site: `make docs`. Pages of reference come from the code first, then Sphinx reads all; a warning ends it.

`commands.md` has the `--help` of every command, `configuration.md` the fields of a retriever's YAML file and the
settings of the server, `presets.md` the named retrievers.
"""

from __future__ import annotations

import os
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from unittest import mock

import sphinx.cmd.build as sphinx
from pydantic import BaseModel

from diffretriever.__main__ import commands
from diffretriever.presets import list_presets
from diffretriever.schemas import retriever
from diffretriever.schemas.serve_config import ServeConfig
from tools import ROOT

_WIDTH = "100"


def build(site: Path) -> int:
    """Write the site into a folder and return Sphinx's exit status, 0 without warnings."""
    _write(ROOT / "build" / "reference")
    status = sphinx.main(["--quiet", "--fail-on-warning", "-c", str(ROOT / "docs"), str(ROOT), str(site)])
    if not status:
        print(site / "docs" / "index.html")
    return status


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in {"commands": _commands(), "configuration": _configuration(), "presets": _presets()}.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def _commands() -> Iterator[str]:
    yield "# Commands\n\nIn a checkout, `diffretriever NAME` is `python jobs/FILE.py`.\n"
    for name, job in commands().items():
        yield f"## {name}\n\n`python jobs/{job.name}`\n\n```text\n{_help_of(job)}\n```\n"


def _help_of(job: Path) -> str:
    printed = StringIO()
    arguments, environment = [f"jobs/{job.name}", "--help"], {**os.environ, "COLUMNS": _WIDTH}
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", [str(job.parent), *sys.path]),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(printed),
        suppress(SystemExit),
    ):
        runpy.run_path(str(job), run_name="__main__")
    return printed.getvalue().strip()


def _configuration() -> Iterator[str]:
    yield "# Configuration\n\n## A retriever's YAML file\n\nThe key `method` chooses which fields follow.\n"
    kinds = (
        retriever.MaskedRetriever,
        retriever.GeneratedRetriever,
        retriever.PooledRetriever,
        retriever.TokensRetriever,
        retriever.LibraryRetriever,
        retriever.Bm25Retriever,
    )
    for kind in kinds:
        yield f"### `method: {kind.model_fields['method'].default}`\n\n{_sentence(kind.__doc__)}\n"
        yield from _table(kind)
    yield "## The backbone of a retriever: `backbone`\n"
    yield from _table(retriever.BackboneConfig)
    yield "## The server: `python -m serve NAME=VALUE ...`\n"
    yield from _table(ServeConfig)


def _table(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    if not prefix:
        yield "| field | default | meaning |\n|---|---|---|"
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _table(type(field.default), f"{prefix}{name}.")
        elif name != "method":
            default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
            yield f"| `{prefix}{name}` | {default} | {_sentence(field.description)} |"
    if not prefix:
        yield ""


def _presets() -> Iterator[str]:
    yield "# Presets\n\nPass a name to `--retriever` or to `dr.Retriever`.\n\n| name | use |\n|---|---|"
    yield from (f"| `{name}` | {purpose} |" for name, purpose in list_presets().items())


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    raise SystemExit(build(parser.parse_args().output))
