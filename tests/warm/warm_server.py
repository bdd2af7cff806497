"""A Python that has its heavy libraries loaded already: each program it is asked to run begins in a fork of it.

Importing torch, transformers and Ray takes longer than what most processes of the tests do. The server imports them
once, and nothing of this project. `warm_client.py` stands in for the interpreter: it hands over its arguments,
environment, streams and mount namespace, and ends as the program ends.

Ray reads settings from the environment while it is imported. So the server itself has all but Ray, and programs run in
forks of a fork for each set of settings, which has imported Ray with these; the job that a worker belongs to is one of
them. The fork in which another server begins has not imported Ray, as that one does all of this again.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import inspect
import json
import os
import random
import runpy
import select
import selectors
import signal
import site
import socket
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np

PRELOADED = (
    "aiohttp.web",
    "aiohttp_cors",
    "click",
    "colorful",
    "deepspeed.runtime.engine",
    "fastapi",
    "google.protobuf.json_format",
    "google.protobuf.struct_pb2",
    "grpc.aio",
    "grpc_reflection.v1alpha.reflection",
    "ir_measures",
    "jsonschema",
    "lance",
    "matplotlib.pyplot",
    "numba",
    "opencensus.stats.aggregation",
    "opencensus.stats.stats",
    "opentelemetry.exporter.prometheus",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "pandas",
    "peft",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.feather",
    "pyarrow.parquet",
    "requests",
    "scipy.stats",
    "torch",
    # DeepSpeed wants it once there is an optimizer.
    "torch._inductor.compile_fx",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
)
RAY_OF_WORKERS = (
    "ray.data",
    # Ray wants it at its end.
    "ray.dag.compiled_dag_node",
)
"""For workers, whose settings name a job: one that imported Ray without its job's name would wait for ever."""
RAY = (
    *RAY_OF_WORKERS,
    "ray.autoscaler._private.monitor",
    "ray.dashboard.agent",
    "ray.dashboard.dashboard",
    "ray.dashboard.modules.job.job_agent",
    "ray.dashboard.modules.log.log_agent",
    "ray.dashboard.modules.reporter.reporter_agent",
    "ray.job_submission",
    "ray._private.log_monitor",
    "ray._private.runtime_env.agent.runtime_env_agent",
)
"""All that is imported with settings in force; what Ray Serve reads is set by the tests themselves, later."""
_READ_WHEN_USED = {
    "RAY_ADDRESS",
    "RAY_CLIENT_MODE",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_NODE_ID",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING",
    "RAY_RAYLET_PID",
    "RAY_RUNTIME_ENV_HOOK",
    "RAY_TMPDIR",
}
"""Settings that no import takes up, but for RAY_RAYLET_PID, of which `_import_with` takes care."""
_MOST_BYTES = 1 << 20
Settings: TypeAlias = tuple[tuple[str, str], ...]


def serve(address: str) -> dict[str, Any] | None:
    """Hand requests to the forks with their settings; return one in the fork that runs it, None once all is over."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    print(os.getpid(), flush=True)
    forks: dict[Settings | None, socket.socket] = {}
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        client, _ = listening.accept()
        request = _received(client)
        if request is None:
            client.close()
            continue
        settings = _settings(request)
        if settings not in forks:
            forks[settings], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                for own in (listening, client, *forks.values()):
                    own.close()
                for each in request["handed"]:
                    os.close(each)
                if settings is not None:
                    _import_with(settings)
                return run_forks(theirs)
            theirs.close()
        handed = [*request.pop("handed"), client.fileno()]
        socket.send_fds(forks[settings], [json.dumps(request).encode()], handed)
        for each in handed[:-1]:
            os.close(each)
        client.close()
    return None


def _use_once() -> None:
    """Have libraries do what they do at their first use, as long as it starts no thread.

    numba loads its tables of types and functions, and transformers makes its patterns of tensors' names.
    """
    import_module("numba").njit(lambda number: number)(1)
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("bert")
    _note_files()


def _note_files() -> None:
    """Have Python note which file each module is of, for which pydantic asks: it does where it is asked for another."""
    inspect.getmodule(compile("", "nowhere", "exec"))


def _settings(request: dict[str, Any]) -> Settings | None:
    """Return those of Ray that count from its import on; None for a program that is to import it itself."""
    if request["arguments"][0].endswith(Path(__file__).name):
        return None
    given = request["environment"].items()
    return tuple(sorted(each for each in given if each[0].startswith("RAY_") and each[0] not in _READ_WHEN_USED))


def _import_with(settings: Settings) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(settings)
    # Ray's C++ reads it now, and workers end when that process does. Their client looks after the raylet in its place.
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    with contextlib.redirect_stdout(sys.stderr):
        for name in RAY_OF_WORKERS if "RAY_JOB_ID" in os.environ else RAY:
            import_module(name)
    _note_files()
    gc.freeze()


def run_forks(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; return the request in the fork, and None here once no more come and all have ended."""
    # No epoll: forks would share its state.
    waiting = selectors.PollSelector()
    waiting.register(requests, selectors.EVENT_READ)
    clients: dict[int, socket.socket] = {}
    while waiting.get_map():
        for key, _ in waiting.select():
            if key.fileobj is not requests:
                _end(key.data, clients, waiting)
                continue
            data, handed, _, _ = socket.recv_fds(requests, _MOST_BYTES, 5)
            if not data:
                waiting.unregister(requests)
                continue
            client = socket.socket(fileno=handed.pop())
            child = os.fork()
            if child == 0:
                for own in (requests, client, *clients.values()):
                    own.close()
                return {**json.loads(data), "handed": handed}
            for each in handed:
                os.close(each)
            clients[child] = client
            waiting.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            waiting.register(client, selectors.EVENT_READ, child)
            _tell(client, child)
    return None


def _received(client: socket.socket) -> dict[str, Any] | None:
    """Return what a client asks for; None if it ended before it had said so."""
    data, handed, _, _ = socket.recv_fds(client, _MOST_BYTES, 4)
    while not data.endswith(b"\n"):
        more = client.recv(_MOST_BYTES)
        if not more:
            return None
        data += more
    return {**json.loads(data), "handed": handed}


def _end(child: int, clients: dict[int, socket.socket], waiting: selectors.BaseSelector) -> None:
    """Tell a client how its program ended, or end the program of a client that is gone."""
    if child not in clients:
        return
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    client = clients.pop(child)
    _tell(client, status)
    for key in [key for key in waiting.get_map().values() if key.data == child]:
        waiting.unregister(key.fileobj)
        if key.fileobj is not client:
            os.close(key.fd)
    client.close()


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # The client may have ended first.
        client.sendall(number.to_bytes(4, "little"))


def run_and_end(request: dict[str, Any]) -> NoReturn:
    """Run a program and end this process as it ends, without taking down all modules that are loaded.

    That would take longer than many programs. What was not caught goes to the interpreter, which ends in its own way.
    """
    code: Any = None
    try:
        run(request)
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    # What the interpreter does first, too.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def run(request: dict[str, Any]) -> None:
    """Run the program as the interpreter would."""
    # Ray ends a worker with all of its process group: that must not be the tests'.
    os.setpgid(0, 0)
    *streams, namespace = request["handed"]
    _enter(namespace)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    kind, arguments = request["kind"], request["arguments"]
    sys.argv = ["-c", *arguments[1:]] if kind == "code" else arguments
    first = Path(arguments[0]).resolve().parent if kind == "file" else Path.cwd()
    given = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    sys.path[:] = [str(first), *(str(Path(place).absolute()) for place in given), *sys.path[1:]]
    site.execsitecustomize()
    random.seed()
    np.random.seed()
    if kind == "file":
        runpy.run_path(arguments[0], run_name="__main__")
    elif kind == "code":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(arguments[0], vars(main))
    else:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _enter(namespace: int) -> None:
    """Go where the client's files are; needs the rights of root if that is elsewhere."""
    if os.fstat(namespace).st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


if __name__ == "__main__":
    # What they say is not for whoever waits for this to be ready.
    with contextlib.redirect_stdout(sys.stderr):
        for name in PRELOADED:
            import_module(name)
        _use_once()
    # Nothing of Lance runs before a fork.
    warnings.filterwarnings("ignore", "lance is not fork-safe")
    gc.freeze()
    asked = serve(sys.argv[1])
    if asked is not None:
        run_and_end(asked)
