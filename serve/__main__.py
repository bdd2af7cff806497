"""Serve an index on this machine: `python -m serve index=FOLDER`, with settings of `ServeConfig`.

SIGTERM and Ctrl-C shut down cleanly: running requests finish, new ones are rejected, and the exit status is 0.
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
# In a checkout, the package is in `platform`; an installed wheel needs no path.
if (ROOT / "platform").is_dir():
    sys.path.insert(0, str(ROOT / "platform"))

from diffretriever.schemas.base import Model, error_messages, refuse_unknown_keys  # noqa: E402
from diffretriever.schemas.serve_config import ServeConfig  # noqa: E402
from diffretriever.serve import starting  # noqa: E402
from diffretriever.serving.guard import is_address  # noqa: E402

_NAME = "diffretriever"
_KEYS = (
    "Environment variables: DIFFRETRIEVER_API_KEY may search and change the index, DIFFRETRIEVER_READ_KEY may only",
    "search; each has at least 16 characters. Without keys, the server requires host=127.0.0.1 or open=true.",
)


class Address(Model):
    """Address of the server."""

    host: str = "127.0.0.1"
    """Interface to listen on. 0.0.0.0 accepts requests from the network, which need a key."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen on."""


def main(arguments: list[str]) -> None:
    """Serve by `key=value` arguments until a signal arrives; raise ValueError if the server cannot start."""
    if {"-h", "--help"} & {*arguments}:
        sys.stdout.write(_help())
        return
    values = dict(_pair(argument) for argument in arguments)
    known = ServeConfig.model_fields | Address.model_fields
    refuse_unknown_keys({name.partition(".")[0]: value for name, value in values.items()}, known, "the settings")
    address = Address.model_validate({name: values.pop(name) for name in Address.model_fields if name in values})
    values = {**_of_address(address.host), **values}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Ray's processes inherit the environment.
    os.environ.update(starting.ENVIRONMENT)
    try:
        url = f"http://{address.host}:{address.port}"
        with starting.starting(address.host, address.port):
            sys.stderr.write(f"starting on {url}\n")
            application = _application(values)
            _start_ray(address)
        _run(application)
        sys.stderr.write(f"serving on {url}, docs at {url}/docs, Prometheus metrics at {url}/metrics\n")
        signal.pause()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write("terminated: finishing the running requests\n")
    finally:
        _end_ray()


def _help() -> str:
    settings = [line for model in (ServeConfig, Address) for line in _settings(model)]
    return "\n".join(["usage: python -m serve index=FOLDER [NAME=VALUE ...]\n", *settings, "", *_KEYS, ""])


def _settings(model: type[Model], prefix: str = "") -> Iterator[str]:
    """Yield the help lines of each setting, required ones first."""
    for name, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        if isinstance(field.default, Model):
            yield from _settings(type(field.default), f"{prefix}{name}.")
            continue
        about = " ".join((field.description or "").split())
        default = "required" if field.is_required() else f"default: {field.default}"
        yield from textwrap.wrap(f"  {prefix}{name}: {about} ({default})", 100, subsequent_indent="      ")


def _pair(argument: str) -> tuple[str, str]:
    name, separator, value = argument.partition("=")
    if not separator:
        raise ValueError(f"{argument}: write settings as NAME=VALUE, such as index=indexes/mine")
    return name, value


def _of_address(host: str) -> dict[str, Any]:
    if host in ("127.0.0.1", "localhost", "::1"):
        # HAProxy listens on all interfaces, whatever the host is.
        return {"open": os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1"}
    return {} if is_address(host) else {"hosts": host}


def _application(values: dict[str, Any]) -> Any:
    from diffretriever.serve.app import search_app, settings
    from diffretriever.serving.opening import check_config

    check_config(settings(values))
    return search_app(values)


def _start_ray(address: Address) -> None:
    from ray import serve

    from diffretriever.pipelines.cluster import connect

    # This module reports start and end itself.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    connect("local")
    serve.start(http_options=address.model_dump())


def _run(application: Any) -> None:
    from ray import serve

    try:
        serve.run(application, name=_NAME, route_prefix="/")
    except RuntimeError as error:
        errors = [
            deployment.message
            for deployment in serve.status().applications[_NAME].deployments.values()
            if deployment.message
        ]
        raise ValueError("\n".join([f"the application cannot start: {error}", *errors])) from None


def _end_ray() -> None:
    import ray
    from ray import serve

    # Ray's functions would start Ray to shut it down.
    if ray.is_initialized():
        # Ray reports the actors that it shuts down as dead.
        with redirect_stdout(io.StringIO()):
            with suppress(serve.exceptions.RayServeException):
                # Ray shuts down proxies and replicas at once, so delete the application first.
                serve.delete(_NAME)
            serve.shutdown()
            ray.shutdown()


def explain(error: ValueError) -> str:
    """Return the message of an error, one line per setting."""
    return "\n".join(error_messages(error)) if isinstance(error, ValidationError) else str(error)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"error: {explain(error)}\n")
        raise SystemExit(1) from None
