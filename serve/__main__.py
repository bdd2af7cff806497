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
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
# In a checkout, the package is in `platform`; an installed wheel needs no path.
if (ROOT / "platform").is_dir():
    sys.path.insert(0, str(ROOT / "platform"))

from diffretriever.schemas.base import Model, error_messages, shortened, suggest  # noqa: E402
from diffretriever.schemas.serve_config import ServeConfig  # noqa: E402
from diffretriever.serve import starting  # noqa: E402
from diffretriever.serving.guard import is_address  # noqa: E402

_NAME = "diffretriever"
_GROUPS = {
    "Address": ("host", "port"),
    "Index and model": ("index", "backbone", "adapter", "trust_code"),
    "Access": ("open", "hosts", "cors_origins", "page"),
    "Encoding and search": ("device", "threads", "batch_tokens", "recorded", "selector", "refresh_s"),
    "Limits and load": ("limits", "max_ongoing", "load"),
    "Deployments": ("layout", "shards", "shards_needed", "shard_timeout_s", "ingress", "encoder", "shard"),
}
"""Settings by their title in `--help`; a name stands for its nested settings too."""
_USAGE = "usage: python -m serve index=FOLDER [NAME=VALUE ...], such as: python -m serve index=indexes/mine port=8001"
_KEYS = """\
Environment variables (keys have at least 16 characters; without keys, the server requires host=127.0.0.1 or open=true)
  DIFFRETRIEVER_API_KEY: Key for searching and changing the index.
  DIFFRETRIEVER_READ_KEY: Key for searching only.
"""


class Address(Model):
    """Address of the server."""

    host: str = "127.0.0.1"
    """IP address or host name to listen on. 0.0.0.0 accepts requests from the network, which needs an API key."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen on."""


def main(arguments: list[str]) -> None:
    """Serve by `key=value` arguments until a signal arrives; raise ValueError if the server cannot start."""
    if {"-h", "--help"} & {*arguments}:
        sys.stdout.write(_help())
        return
    values = dict(_pair(argument) for argument in arguments)
    known = _settings()
    for name in values:
        if name not in known:
            listed = f" Known: {', '.join(sorted(known))}."
            raise ValueError(f"unknown setting '{shortened(name)}'.{suggest(name, known).removesuffix(listed)}{listed}")
    address = Address.model_validate({name: values.pop(name) for name in Address.model_fields if name in values})
    values = {**_of_address(address.host), **values}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Ray's processes inherit the environment.
    os.environ.update(starting.ENVIRONMENT)
    try:
        url = f"http://{address.host}:{address.port}"
        with starting.starting(address.host, address.port):
            application = _application(values)
            sys.stderr.write(f"starting on {url}\n")
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
    lines = [_USAGE]
    for title, names in _GROUPS.items():
        lines += ["", title]
        for name, field in _settings().items():
            if name.partition(".")[0] in names:
                about = " ".join((field.description or "").split())
                default = "required" if field.is_required() else f"default: {field.default}"
                text = about if field.default in (None, ()) else f"{about} ({default})"
                lines += textwrap.wrap(f"  {name}: {text}", 100, subsequent_indent="      ")
    return "\n".join([*lines, "", _KEYS])


def _settings() -> dict[str, FieldInfo]:
    """Return all settings by name; nested names have a dot."""
    settings: dict[str, FieldInfo] = {}
    for name, field in (Address.model_fields | ServeConfig.model_fields).items():
        if isinstance(field.default, Model):
            settings |= {f"{name}.{nested}": value for nested, value in type(field.default).model_fields.items()}
        else:
            settings[name] = field
    return settings


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
