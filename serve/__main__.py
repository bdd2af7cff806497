"""Serve an index on this machine until told to end: `python -m serve index=FOLDER`, with settings of `ServeConfig`.

SIGTERM and Ctrl-C end it well: requests that are being worked on are answered, others are refused, and the status is 0.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Of a checkout, wherever the command is given; a wheel has this within the package, which is on the path already.
if (ROOT / "platform").is_dir():
    sys.path.insert(0, str(ROOT / "platform"))

from diffretriever.schemas.base import Model  # noqa: E402
from diffretriever.serve.front import ENVIRONMENT  # noqa: E402

_NAME = "diffretriever"
_LOOK_S = 0.5


class Address(Model):
    """Where it answers."""

    host: str = "127.0.0.1"
    """0.0.0.0: every machine of the network may ask."""
    port: int = 8000


def main(arguments: list[str]) -> None:
    """Serve by `key=value` arguments, until a signal comes.

    Raises:
        ValueError: an unknown or malformed setting, or the application cannot start; the message says why.
    """
    given = dict(_pair(argument) for argument in arguments)
    address = Address.model_validate({name: given.pop(name) for name in Address.model_fields if name in given})
    # The proxies of a Ray that is started from here on.
    os.environ.update(ENVIRONMENT)
    import ray
    from ray import serve

    from diffretriever.pipelines.cluster import connect
    from diffretriever.serve.app import search_app

    application = search_app(given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        connect("local")
        serve.start(http_options=address.model_dump())
        target = serve.RunTarget(application, name=_NAME, route_prefix="/")
        serve.run_many([target], wait_for_applications_running=False)
        _wait_until_running()
        sys.stderr.write(f"serving on http://{address.host}:{address.port}\n")
        signal.pause()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write("told to end: answering what is being worked on\n")
        # Ray shuts its proxies down beside the replicas, so the application goes first.
        if ray.is_initialized():
            serve.delete(_NAME)
    finally:
        serve.shutdown()
        ray.shutdown()


def _pair(argument: str) -> tuple[str, str]:
    name, separator, value = argument.partition("=")
    if not separator:
        raise ValueError(f"{argument}: give settings as NAME=VALUE, such as index=indexes/mine")
    return name, value


def _wait_until_running() -> None:
    from ray import serve

    while (found := serve.status().applications[_NAME]).status != "RUNNING":
        if found.status == "DEPLOY_FAILED":
            raise ValueError(found.message)
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from None
