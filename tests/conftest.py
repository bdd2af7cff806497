"""Fixtures and hooks of all tests."""

from __future__ import annotations

import tests.waiting  # noqa: F401

# isort: split
import gc
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.cluster.s3 import S3, s3_endpoint
from tests.warm.warm_python import warm_python, warm_test_processes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the long forms of tests: they kill a job more often")


def pytest_configure(config: pytest.Config) -> None:
    """Fork test processes from one with heavy libraries loaded."""
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        config.option.tx = warm_test_processes(config.option.tx, config.add_cleanup)


def pytest_collection(session: pytest.Session) -> None:
    """Disable garbage collection during imports, which leave little garbage and many objects to scan."""
    # Forked processes begin with frozen objects, which `gc.get_referrers` does not report.
    gc.unfreeze()
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    # A full collection takes most of a second, so collect rarely.
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds that each folder of tests took, in all processes together."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = Path(report.nodeid.partition("::")[0]).parent
                seconds[folder.parts[1] if len(folder.parts) > 1 else "tests"] += report.duration
    if seconds:
        terminalreporter.section("seconds by folder")
        terminalreporter.write_line(
            ", ".join(f"{name} {spent:.0f}" for name, spent in sorted(seconds.items(), key=itemgetter(1), reverse=True))
        )


class Scheduling(LoadFileScheduling):
    """Run the tests of a file in one process, and all of `cluster/`, which share slow nodes, in one."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "tests/cluster/"
        return folder if nodeid.startswith(folder) else str(super()._split_scope(nodeid))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need an object store or compile, which `make check` excludes."""
    for item in items:
        if {"bucket", "s3"} & {*getattr(item, "fixturenames", ())} or "compiled" in item.nodeid:
            item.add_marker("store")


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests run in their long form."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread: small models only wait for more on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def jobs_path() -> Iterator[None]:
    """Put `jobs/` on the path; restore the settings of its modules after the test."""
    from tests.jobs.programs import own_process

    with own_process():
        yield


RAY_SETTINGS = {
    # By default Ray's workers have a low priority, and take minutes to start on a busy machine.
    "RAY_worker_niceness": "0",
    # Keep idle workers; by default they end after a second.
    "RAY_idle_worker_killing_time_threshold_ms": "3600000",
    # Start no workers in advance: a fork starts at once.
    "RAY_prestart_worker_first_driver": "0",
    # Tests read no metrics of nodes.
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    "RAY_enable_metrics_collection": "0",
    # Wait longer for processes on a busy machine.
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    # Ray replaces a worker that crashed before it registered after this time; forks register within seconds.
    "RAY_worker_register_timeout_seconds": "120",
    "RAY_agent_register_timeout_ms": "2000000",
    "RAY_health_check_timeout_ms": "2000000",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "3600",
}


@pytest.fixture(scope="session", autouse=True)
def _own_ray() -> Iterator[None]:
    """Give this session its own folder of Ray's files, and a cache for the workers."""
    # The paths of Ray's sockets in it have at most about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("DIFFRETRIEVER_CACHE", str(folder / "cache"))
        for name, value in RAY_SETTINGS.items():
            patch.setenv(name, value)
        yield
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def warm() -> Iterator[None]:
    """Fork Ray's workers and `python` from a process with torch loaded."""
    with warm_python() as variables, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(variables["PYTHONPATH"].split(":")[-1])
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(warm: None, s3: S3) -> None:
    """A local Ray of two CPUs with access to `s3`, shared by all modules."""
    import ray

    from diffretriever.pipelines.cluster import connect

    if not ray.is_initialized():
        with s3.reached():
            connect("local", num_cpus=2)


@pytest.fixture
def no_cluster(warm: None) -> None:
    """Disconnect this process from Ray, as at the start of a job."""
    import ray

    ray.shutdown()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA in its original format."""
    from diffretriever.testing.checkpoints import write_random_checkpoint

    return write_random_checkpoint("llada", tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the read-only folder of a random checkpoint of hidden size 32."""
    from diffretriever.testing.checkpoints import write_random_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda family: write_random_checkpoint(family, root / family, hidden_size=32))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 endpoint behind a fault proxy."""
    with s3_endpoint(tmp_path_factory.mktemp("s3") / "log") as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """The URI of an empty bucket."""
    with s3.reached():
        yield s3.make_bucket()
