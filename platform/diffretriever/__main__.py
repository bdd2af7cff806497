"""The command `diffretriever`: every job and the server. `diffretriever encode …` is `python jobs/encode_beir.py …`."""

from __future__ import annotations

import ast
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from diffretriever import __version__
from diffretriever.schemas.base import suggest

_JOBS = Path(__file__).resolve().parent / "jobs"
_SHORT = {"encode": "encode_beir", "accelerate": "accelerate_index", "compress": "compress_index"}
_SHORT |= {"inspect": "inspect_index", "maintain": "maintain_index"}
"""Commands whose job has a longer name."""
_SERVE = "Serve an index over HTTP: `diffretriever serve index=FOLDER port=8000`."


def commands() -> dict[str, Path]:
    """Return what can be said after `diffretriever`, but `serve`, and the job that it starts."""
    short = {job: command for command, job in _SHORT.items()}
    jobs = [file for file in sorted(_JOBS.glob("*.py")) if not file.name.startswith("_")]
    return {short.get(job.stem, job.stem).replace("_", "-"): job for job in jobs}


def main() -> None:
    """Run the command that the arguments name.

    Exit status: the job's own; 2 for an unknown command.
    """
    name, *rest = sys.argv[1:] or ["--help"]
    known = commands()
    if name in {"-h", "--help"}:
        print(_help(known))
    elif name == "--version":
        print(f"diffretriever {__version__}")
    elif name == "serve":
        sys.argv = ["diffretriever serve", *rest]
        runpy.run_module("diffretriever.serve", run_name="__main__", alter_sys=True)
    elif name in known:
        sys.argv = [f"diffretriever {name}", *rest]
        _start(known[name])
    else:
        hint = suggest(name, [*known, "serve"])
        sys.stderr.write(f"diffretriever: unknown command {name}.{hint}\nSee `diffretriever --help`.\n")
        raise SystemExit(2)


def _start(job: Path) -> None:
    """Run a job as Python runs a script, but under the name that it was called by."""
    spec = spec_from_file_location("__main__", job)
    assert spec is not None
    assert spec.loader is not None
    # Jobs find what they share beside themselves.
    sys.path.insert(0, str(job.parent))
    sys.modules["__main__"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["__main__"])


def _help(known: dict[str, Path]) -> str:
    purposes = {name: ast.get_docstring(ast.parse(job.read_text("utf-8"))) or "" for name, job in known.items()}
    purposes["serve"] = _SERVE
    width = max(map(len, purposes))
    lines = [f"  {name:{width}}  {purpose.splitlines()[0]}" for name, purpose in sorted(purposes.items())]
    told = "`diffretriever COMMAND --help` explains each."
    return "\n".join(["usage: diffretriever COMMAND [options]", "", *lines, "", told])


if __name__ == "__main__":
    main()
