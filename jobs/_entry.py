"""Entry point of all jobs: import path, one-line errors and exit status."""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
# Of a checkout; a wheel has the jobs within the package, which is on the path already.
if (ROOT / "platform").is_dir():
    sys.path.insert(0, str(ROOT / "platform"))
# Lance warns of fork without exec, which Ray does not use.
warnings.filterwarnings("ignore", message="lance is not fork-safe")

# A job imports a million objects that stay. To look for garbage among them after every 700 new ones takes one second of
# the seven that `search.py` takes on two cores, and to do so once more at the exit .6.
gc.set_threshold(200_000, 20, 100)
atexit.register(gc.freeze)

from diffretriever.core.consent import trust_code  # noqa: E402  (found through the path above)
from diffretriever.core.full_disk import causes, full_disk  # noqa: E402
from diffretriever.core.progress import show_progress  # noqa: E402
from diffretriever.schemas.locations import StorePath, plain_location  # noqa: E402
from diffretriever.schemas.settings import JobConfig, ModelOptions, PresetListing  # noqa: E402

C = TypeVar("C", bound=JobConfig)
_LOST = (
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "OwnerDiedError",
    "RpcError",
    "WorkerCrashedError",
)
"""Ray errors for lost workers and nodes, by name, because a job may not have loaded Ray."""
_SAFE = "committed work is safe; run the same command to resume"


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """Exit quietly, with the status of SIGPIPE, if the output's reader closes, as `head` does."""
    try:
        try:
            yield
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        poll = select.poll()
        for number in (1, 2):
            poll.register(number, 0)
        closed = [number for number, event in poll.poll(0) if event & select.POLLERR]
        # A connection's, not the output's.
        if not closed:
            raise
        # Python flushes remaining output at exit.
        for number in closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        raise SystemExit(128 + signal.SIGPIPE) from None


@_until_the_reader_leaves()
def run(config_class: type[C], main: Callable[[C], None], absolute: tuple[str, ...] = ()) -> None:
    """Fill the config from the command line and call `main`.

    Paths in `output`, and in the settings that `absolute` names, become absolute: workers run in other directories.

    Exit status: 0 success, 1 error, 2 wrong command line, 130 interrupted, 141 output closed, 143 terminated.
    Unexpected errors print a traceback and exit with 1.
    """
    signal.signal(signal.SIGTERM, _terminate)
    # Before the required flags are checked.
    if issubclass(config_class, PresetListing) and "--list-presets" in sys.argv[1:]:
        _print_presets()
        return
    shows_help = {"-h", "--help"} & set(sys.argv[1:])
    config = config_class.from_command_line(examples=_examples(main) if shows_help else ())
    show_progress()
    try:
        if isinstance(config, ModelOptions):
            trust_code(())
        paths = {name: path for name in ("output", *absolute) if (path := getattr(config, name, None)) is not None}
        update = {name: type(path)(absolute_path(path, f"--{name}")) for name, path in paths.items()}
        main(config.model_copy(update=update))
    except BaseException as error:
        status = _report(error)
        if status is None:
            raise
        raise SystemExit(status) from None


def _print_presets() -> None:
    from diffretriever.presets import list_presets

    presets = list_presets()
    width = max(map(len, presets))
    for name, purpose in presets.items():
        print(f"{name:{width}}  {purpose}")


def command() -> str:
    """Return the command line of this job, for reports."""
    return shlex.join(["python", *sys.argv])


def _examples(main: Callable[[C], None]) -> list[str]:
    import inspect

    import yaml

    named = yaml.safe_load((Path(__file__).parent / "examples.yaml").read_text("utf-8"))
    return list(named.get(Path(inspect.getfile(main)).stem, []))


def _report(error: BaseException) -> int | None:
    """Print why a job ended, and return its exit status; None for unexpected errors."""
    # Of a signal within a call of Ray's, another error is made.
    for cause in causes(error):
        if isinstance(cause, KeyboardInterrupt):
            sys.stderr.write(f"interrupted: {_SAFE}\n")
            return 128 + signal.SIGINT
        # While Ray starts, the signal is answered by a handler of its own.
        if isinstance(cause, _TerminatedError) or (isinstance(cause, SystemExit) and cause.code == signal.SIGTERM):
            sys.stderr.write(f"terminated: {_SAFE}\n")
            return 128 + signal.SIGTERM
    message = _message(error) if isinstance(error, Exception) else None
    if message is None:
        return None
    sys.stderr.write(f"error: {message}\n")
    return 1


def _message(error: Exception) -> str | None:
    """Return the message of a user error or a full disk; None for unexpected errors."""
    if full := full_disk(error):
        return f"{str(full).strip().splitlines()[-1]}: make room, and run the same command to resume"
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    kinds = map(type, causes(error))
    if any(kind.__name__ in _LOST and kind.__module__ == "ray.exceptions" for kind in kinds):
        reason = str(error).strip().partition("\n")[0]
        return f"Ray lost a process or node of this job ({reason}): {_SAFE}"
    return None


class _TerminatedError(BaseException):
    """SIGTERM was received."""


def _terminate(*_: object) -> None:
    raise _TerminatedError


def absolute_path(path: str | Path | StorePath, flag: str) -> str:
    """Return an absolute path, or the URI of an object store.

    Raises:
        ValueError: A relative path in a submitted job, whose working directory Ray deletes.
    """
    text = plain_location(str(path))
    if "://" in text:
        return text
    if not Path(text).is_absolute() and _in_submitted_copy():
        raise ValueError(
            f"{flag} {text} is relative to a copy of the working directory that Ray deletes after the job: "
            "give an absolute path or a URI"
        )
    return str(Path(text).absolute())


def _in_submitted_copy() -> bool:
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    return "working_dir" in job.get("runtime_env", {})
