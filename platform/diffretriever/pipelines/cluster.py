"""Connects to the Ray cluster and sizes the pool of encoders."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import ray
from ray._common.utils import get_default_system_temp_dir
from ray._private.utils import read_ray_address

from diffretriever.core.consent import trusted_sources
from diffretriever.pipelines import DEVICE_VARIABLE
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.schemas.settings import TRUST_VARIABLE, RayConfig

# Ray counts resources in ten-thousandths.
_ROUNDING = 1e-9
# CPUs for reading and preparing, in addition to the encoders.
READER_CPUS = 0.1
PREPARE_CPUS = 0.15
_CPUS_WITHOUT_GPU = 0.75
_SECONDS_TO_ANSWER = 3.0
_STARTS = 4
_TOO_LATE = ("timed out during startup", "Timed out waiting for file")
"""Parts of Ray's messages when its own processes have not started in 15 or 30 seconds."""
_FOLDER_BYTES = 107 - len("/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store")
"""Longest path of the folder of Ray's files: the rest of a Unix socket's path is below it."""
_TOKENS = "ray._private.authentication.authentication_token_setup"
"""Logger of Ray's messages about tokens."""
_HOW_TO_RETRY = "\nFailed to apply UDF transform after"
"""Start of the advice that Ray Data appends to the message of an error."""
_OF_A_FILE = re.compile(r"\[Errno (\d+)\] ([^\n]*?): '([^'\n]+)'")
"""The message of an `OSError` that names a file."""
_PLACE = Path(__file__).resolve().parents[2]
"""The folder that contains this package: `platform` of a checkout, or that of an installed wheel."""
open_streams: WeakSet[Generator[Any, None, None]] = WeakSet()
"""Streams of results, closed before Ray shuts down: Ray Data starts another Ray to tear down a half-read one."""


class Share(NamedTuple):
    """Resources that an actor takes or a node offers."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        cpus = f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"
        return f"{self.gpus:g} GPU{'s' * (self.gpus != 1)} and {cpus}" if self.gpus else cpus

    def count_on(self, node: Share) -> int:
        """Return how many actors of this share fit on a node."""
        return min(int(offered / taken + _ROUNDING) for offered, taken in zip(node, self, strict=True) if taken)


def see_nodes() -> tuple[Share, ...]:
    """Return the resources of each live node of the connected cluster."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return tuple(Share(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes)


@dataclass(frozen=True, slots=True)
class EncoderPool:
    """The encoder actors of a job, and the resources of each."""

    encoders: int
    cpus: float
    gpus: float

    @property
    def device(self) -> str:
        """Device of an encoder's weights."""
        return os.environ.get(DEVICE_VARIABLE) or ("cuda" if self.gpus else "cpu")


@contextmanager
def ray_session() -> Iterator[None]:
    """Connect to the cluster in RAY_ADDRESS or a running one, or start a local one and stop it at the end."""
    if ray.is_initialized():
        yield
        return
    connect(_running_cluster())
    try:
        yield
    finally:
        for stream in list(open_streams):
            stream.close()
        ray.shutdown()


def connect(address: str, **options: Any) -> None:
    """Connect to the cluster at `address`, or start a `local` one; `options` are passed to `ray.init`.

    If TMPDIR is too long for Ray's sockets, Ray's files are in /tmp/ray.

    Raises:
        ValueError: RAY_TMPDIR is too long for Ray's sockets.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _quieten()
    if address == "local" and len(os.fsencode(folder := get_default_system_temp_dir())) > _FOLDER_BYTES:
        if "RAY_TMPDIR" in os.environ:
            raise ValueError(f"RAY_TMPDIR {folder} is too long: set it to a path of at most {_FOLDER_BYTES} bytes")
        options = {"_temp_dir": "/tmp/ray", **options}  # noqa: S108 (Ray's own default)
    handler = signal.getsignal(signal.SIGTERM)
    for attempt in range(_STARTS):
        try:
            ray.init(
                address=address,
                runtime_env={"env_vars": worker_variables()},
                # The dashboard takes as long to start as all the rest, and its address is not shown.
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                **options,
            )
        except Exception as error:
            # A busy machine starts Ray's processes later than Ray waits for.
            if attempt + 1 == _STARTS or not any(text in str(error) for text in _TOO_LATE):
                raise
            sys.stderr.write("Ray's own processes started too late: starting it again\n")
        else:
            break
    # Ray's own handler prints a stack trace and ends the process.
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _quieten() -> None:
    """Hide warnings that need no action."""
    # Lance warns of fork without exec, which Ray does not use.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    # Few blocks need few encoders.
    warnings.filterwarnings("ignore", message="The minimum number of concurrent actors")
    # A local cluster makes a token for itself.
    logging.getLogger(_TOKENS).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Token authentication is enabled")


def is_ray_running() -> bool:
    """Return whether `ray_session` would use a running Ray.

    Raises:
        ValueError: No Ray answers at the address in the environment.
    """
    return ray.is_initialized() or _running_cluster() != "local"


def _running_cluster() -> str:
    """Return the address of the cluster that answers, or `local`; a killed head leaves a stale address."""
    address = os.environ.get("RAY_ADDRESS") or read_ray_address()
    if not address:
        return "local"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return address
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError:
        if "RAY_ADDRESS" in os.environ:
            raise ValueError(f"no Ray answers at RAY_ADDRESS={address}: start it, or unset RAY_ADDRESS") from None
        return "local"
    return address


def worker_variables() -> dict[str, str]:
    """Return environment variables of workers: the code's path and the permission to run remote code.

    The permission is always set, possibly empty, to override the cluster's environment.
    """
    return {"PYTHONPATH": python_path(), TRUST_VARIABLE: ",".join(trusted_sources())}


def python_path() -> str:
    """Return the path from which workers import this package.

    Submitted jobs run in copies of the working directory, so only relative paths are valid on all nodes.
    """
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and Path.cwd() == _PLACE.parent:
        return _PLACE.name
    return ":".join([str(_PLACE), *filter(None, [os.environ.get("PYTHONPATH")])])


def size_pool(config: RayConfig, retriever: RetrieverConfig) -> EncoderPool:
    """Return the encoders that fit on the cluster; with `autoscale`, `encoders` of them.

    Raises:
        ValueError: The encoders do not fit, or `autoscale` is set without `encoders`.
    """
    if config.autoscale and config.encoders is None:
        raise ValueError("--autoscale: pass --encoders, the number of encoders to grow to")
    gpus = config.gpus_per_encoder if retriever.has_weights else config.gpus_per_encoder or 0.0
    reserved = READER_CPUS + PREPARE_CPUS
    count, share = size_actors(
        "encoder", config.encoders, config.cpus_per_encoder, gpus, autoscale=config.autoscale, reserved=reserved
    )
    return EncoderPool(count, share.cpus, share.gpus)


def size_actors(
    kind: str, count: int | None, cpus: float | None, gpus: float | None, *, autoscale: bool, reserved: float = 0.0
) -> tuple[int, Share]:
    """Return the number of a job's actors, and the resources of each.

    Prints a line if the job has to wait for the first actor.

    Args:
        kind: `encoder` or `worker`, which is also in the names of the flags.
        count: number of actors; None: as many as fit.
        cpus: CPUs of an actor; None: 1 with a GPU, 0.75 without.
        gpus: GPUs of an actor; None: one if a node has any.
        autoscale: whether nodes may be added.
        reserved: CPUs for reading and tokenising.

    Raises:
        ValueError: The actors do not fit, or `gpus` is None and only nodes that are added may have GPUs.
    """
    nodes = see_nodes()
    if gpus is None:
        gpus = float(any(node.gpus for node in nodes))
        if autoscale and not gpus:
            raise ValueError(
                f"--autoscale: no GPU is alive yet: pass --gpus-per-{kind} 1 to wait for nodes with a GPU, "
                f"or --gpus-per-{kind} 0 to use CPUs"
            )
    share = Share(cpus or (1.0 if gpus else _CPUS_WITHOUT_GPU), gpus)
    total = Share(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
    room = max(0, min(sum(map(share.count_on, nodes)), int((total.cpus - reserved) / share.cpus + _ROUNDING)))
    count = count or max(1, room)
    if autoscale:
        if room == 0:
            sys.stderr.write(f"waiting for a machine with {share}: none with room is alive yet\n")
    elif count > room:
        others = f" beside the {reserved:g} CPUs for reading and tokenising" if reserved else ""
        raise ValueError(
            f"no room for {count} {kind}s of {share}: the cluster has {total.cpus:g} CPUs and {total.gpus:g} GPUs, "
            f"which leaves room for {room}{others}. Ask for less with --{kind}s, --cpus-per-{kind} or "
            f"--gpus-per-{kind}, or pass --autoscale if the cluster adds machines by itself"
        )
    return count, share


def on_this_node(cpus: float) -> dict[str, Any]:
    """Return options that pin a Ray task to the driver's node; it reserves no CPUs if the node offers fewer.

    Heads often start with `--num-cpus 0`; a task that reserves CPUs there would wait forever.
    """
    here = ray.get_runtime_context().get_node_id()
    offered = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    return {"num_cpus": cpus if offered.get("CPU", 0.0) >= cpus else 0, "label_selector": {"ray.io/node-id": here}}


def result_of(reference: Any) -> Any:
    """Return the result of a Ray task; re-raise its `ValueError` without Ray's traceback."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise_mistake(error)
        raise


def raise_mistake(error: ray.exceptions.RayError) -> None:
    """Re-raise the `ValueError`, or `OSError` of a file, that a task failed with; else return."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ValueError):
        raise ValueError(str(cause).partition(_HOW_TO_RETRY)[0]) from None
    # Ray Data appends advice to the error, so only its text names the file.
    if isinstance(cause, OSError) and (match := _OF_A_FILE.search(str(error))):
        raise OSError(int(match[1]), match[2], match[3]) from None
