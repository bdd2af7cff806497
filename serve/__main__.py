"""Serve an index on this machine until told to end: `python -m serve index=FOLDER`, with settings of `ServeConfig`.

SIGTERM and Ctrl-C end it well: requests that are being worked on are answered, others are refused, and the status is 0.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

ROOT = Path(__file__).resolve().parents[1]
# Of a checkout, wherever the command is given; a wheel has this within the package, which is on the path already.
if (ROOT / "platform").is_dir():
    sys.path.insert(0, str(ROOT / "platform"))

from diffretriever.schemas.base import Model, mistakes, refuse_unknown_keys  # noqa: E402
from diffretriever.schemas.serve_config import ServeConfig  # noqa: E402
from diffretriever.serve import starting  # noqa: E402
from diffretriever.serving.guard import is_address  # noqa: E402

_NAME = "diffretriever"
_KEYS = (
    "From the environment: DIFFRETRIEVER_API_KEY, the key that may do everything, and DIFFRETRIEVER_READ_KEY, one that",
    "may search, each of at least 16 characters. Without either, the server needs host=127.0.0.1 or open=true.",
)


class Address(Model):
    """Where it answers."""

    host: str = "127.0.0.1"
    """0.0.0.0: every machine of the network may ask, with a key."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """The port that the server listens on."""


def main(arguments: list[str]) -> None:
    """Serve by `key=value` arguments until a signal comes; raise `ValueError`, with the reason, if it cannot start."""
    if {"-h", "--help"} & {*arguments}:
        sys.stdout.write(_help())
        return
    given = dict(_pair(argument) for argument in arguments)
    known = ServeConfig.model_fields | Address.model_fields
    refuse_unknown_keys({name.partition(".")[0]: value for name, value in given.items()}, known, "the settings")
    address = Address.model_validate({name: given.pop(name) for name in Address.model_fields if name in given})
    given = {**_of_address(address.host), **given}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Of Ray's processes, which are started from here on.
    os.environ.update(starting.ENVIRONMENT)
    try:
        url = f"http://{address.host}:{address.port}"
        with starting.starting(address.host, address.port):
            sys.stderr.write(f"starting on {url}\n")
            application = _application(given)
            _start_ray(address)
        _run(application)
        sys.stderr.write(f"serving on {url}, described at {url}/docs, measured for Prometheus at {url}/metrics\n")
        signal.pause()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write("told to end: answering what is being worked on\n")
    finally:
        _end_ray()


def _help() -> str:
    settings = [line for model in (ServeConfig, Address) for line in _settings(model)]
    return "\n".join(["usage: python -m serve index=FOLDER [NAME=VALUE ...]\n", *settings, "", *_KEYS, ""])


def _settings(model: type[Model], prefix: str = "") -> Iterator[str]:
    """Yield a line or more for each setting, the required ones first; those of a part have its name before theirs."""
    for name, field in sorted(model.model_fields.items(), key=lambda each: not each[1].is_required()):
        if isinstance(field.default, Model):
            yield from _settings(type(field.default), f"{prefix}{name}.")
            continue
        about = " ".join((field.description or "").split())
        default = "required" if field.is_required() else f"default: {field.default}"
        yield from textwrap.wrap(f"  {prefix}{name}: {about} ({default})", 100, subsequent_indent="      ")


def _pair(argument: str) -> tuple[str, str]:
    name, separator, value = argument.partition("=")
    if not separator:
        raise ValueError(f"{argument}: give settings as NAME=VALUE, such as index=indexes/mine")
    return name, value


def _of_address(host: str) -> dict[str, Any]:
    """Return the settings that follow from where the server listens."""
    if host in ("127.0.0.1", "localhost", "::1"):
        # HAProxy listens to the whole network, whatever the host is.
        return {"open": os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1"}
    return {} if is_address(host) else {"hosts": host}


def _application(given: dict[str, Any]) -> Any:
    """Return the application, of which everything but the weights has been opened in this process."""
    from diffretriever.serve.app import search_app, settings
    from diffretriever.serving.opening import check_config

    check_config(settings(given))
    return search_app(given)


def _start_ray(address: Address) -> None:
    from ray import serve

    from diffretriever.pipelines.cluster import connect

    # That it has started, and that it is being ended, is said here.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    connect("local")
    serve.start(http_options=address.model_dump())


def _run(application: Any) -> None:
    """Return once the application answers; raise `ValueError`, with the errors of its replicas, if it cannot start."""
    from ray import serve

    try:
        serve.run(application, name=_NAME, route_prefix="/")
    except RuntimeError as error:
        errors = [each.message for each in serve.status().applications[_NAME].deployments.values() if each.message]
        raise ValueError("\n".join([f"the application cannot start: {error}", *errors])) from None


def _end_ray() -> None:
    import ray
    from ray import serve

    # Ray's own functions would start it to end it.
    if ray.is_initialized():
        # Ray says on standard output that what it is told to end has died.
        with redirect_stdout(io.StringIO()):
            with suppress(serve.exceptions.RayServeException):
                # Ray shuts its proxies down beside the replicas, so the application goes first.
                serve.delete(_NAME)
            serve.shutdown()
            ray.shutdown()


def explain(error: ValueError) -> str:
    """Return what is wrong, a line for each setting."""
    return "\n".join(mistakes(error)) if isinstance(error, ValidationError) else str(error)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"error: {explain(error)}\n")
        raise SystemExit(1) from None
