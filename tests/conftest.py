"""What every folder of tests shares."""

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
    """Have the processes of tests begin with heavy libraries loaded."""
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        config.option.tx = warm_test_processes(config.option.tx, config.add_cleanup)


def pytest_collection(session: pytest.Session) -> None:
    """Look for no garbage while modules are imported: there is little, and all that was imported is looked through."""
    # Nobody is found to refer to what is frozen, as what a test process began with is.
    gc.unfreeze()
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    # A look through everything takes most of a second: seldom.
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
    """The tests of a file run in one process; those of `cluster/` too, which share nodes that are slow to start."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "tests/cluster/"
        return folder if nodeid.startswith(folder) else str(super()._split_scope(nodeid))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need an object store or compile for long: `make check` leaves them out."""
    for item in items:
        if {"bucket", "s3"} & {*getattr(item, "fixturenames", ())} or "compiled" in item.nodeid:
            item.add_marker("store")


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests are to run in their long form."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models as small as the tests' only wait for their threads on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def jobs_path() -> Iterator[None]:
    """`jobs/` on the path; what its modules set for a process of their own is restored after the test."""
    from tests.jobs.programs import own_process

    with own_process():
        yield


RAY_SETTINGS = {
    # Ray runs its workers at the lowest priority but four: beside the tests of another session they would take
    # minutes to start.
    "RAY_worker_niceness": "0",
    # A worker without work would end after a second, and the next task start another.
    "RAY_idle_worker_killing_time_threshold_ms": "3600000",
    # Those that Ray starts before there is work are mostly left without; a fork is there at once.
    "RAY_prestart_worker_first_driver": "0",
    # Figures that nobody reads.
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    "RAY_enable_metrics_collection": "0",
    # It gives up on processes that a busy machine is slow to start, or to let answer.
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    # A worker that died before it was known is waited for as long, then replaced: forks are known within seconds.
    "RAY_worker_register_timeout_seconds": "120",
    "RAY_agent_register_timeout_ms": "2000000",
    "RAY_health_check_timeout_ms": "2000000",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "3600",
}


@pytest.fixture(scope="session", autouse=True)
def _own_ray() -> Iterator[None]:
    """A place for Ray's files that no other session has, where jobs find its address; and a cache for its workers."""
    # Ray's sockets lie below it, and their paths may have a hundred characters.
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
    """Workers of every Ray that begins from here on, and `python`, are forks of a process with torch loaded."""
    with warm_python() as variables, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(variables["PYTHONPATH"].split(":")[-1])
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(warm: None, s3: S3) -> None:
    """A local Ray of two CPUs, whose workers reach `s3`: started by the first module that needs it, kept for others."""
    import ray

    from diffretriever.pipelines.cluster import connect

    if not ray.is_initialized():
        with s3.reached():
            connect("local", num_cpus=2)


@pytest.fixture
def no_cluster(warm: None) -> None:
    """No Ray in this process, as a job begins."""
    import ray

    ray.shutdown()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaDA in its original format."""
    from diffretriever.testing.checkpoints import write_random_checkpoint

    return write_random_checkpoint("llada", tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's random checkpoint of hidden size 32: not to be changed."""
    from diffretriever.testing.checkpoints import write_random_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda family: write_random_checkpoint(family, root / family, hidden_size=32))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 endpoint with a fault proxy before it."""
    with s3_endpoint(tmp_path_factory.mktemp("s3") / "log") as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """The URI of an empty bucket that this process, and those it starts, can reach."""
    with s3.reached():
        yield s3.make_bucket()
