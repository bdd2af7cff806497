"""What every job needs first: the library on the path, and errors that end in one clear line and a status."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
# Ray starts its processes by fork and exec, never by fork alone, which is what Lance warns of.
warnings.filterwarnings("ignore", message="lance is not fork-safe")

from diffretriever.consent import trust_code  # noqa: E402  (found through the path above)
from diffretriever.progress import show_progress  # noqa: E402
from schemas.places import StorePath, plain_place  # noqa: E402
from schemas.settings import JobConfig, ModelOptions  # noqa: E402

C = TypeVar("C", bound=JobConfig)


def run(config_class: type[C], main: Callable[[C], None]) -> None:
    """Fill the config from the command line and call `main`.

    Exit status: 0 on success, 1 for a mistake that the message explains, 2 for a wrong command line, 130 when
    interrupted, 143 when told to end; anything unforeseen leaves a traceback and 1.
    """
    signal.signal(signal.SIGTERM, _end)
    config = config_class.from_command_line()
    show_progress()
    try:
        if isinstance(config, ModelOptions):
            trust_code(config.trust_code)
        main(config)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(f"error: {error.filename}: {error.strerror}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what was committed is safe, the same command goes on from there\n")
        raise SystemExit(130) from None
    except (_EndedError, SystemExit) as error:
        # While Ray starts, the signal is answered by a handler of its own.
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:
            raise
        sys.stderr.write("told to end: what was committed is safe, the same command goes on from there\n")
        raise SystemExit(128 + signal.SIGTERM) from None


class _EndedError(BaseException):
    """SIGTERM has come."""


def _end(*_: object) -> None:
    raise _EndedError


def absolute_place(place: str | Path | StorePath, flag: str) -> str:
    """Return `place` as an absolute path or the URI of an object store.

    Raises:
        ValueError: a relative path in a submitted job, whose working directory is a copy that Ray throws away.
    """
    text = plain_place(str(place))
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
