"""Machines of a Ray cluster on this one: raylets with addresses, resources and, where possible, disks of their own.

Where the user may mount, a node lives in a mount namespace in which two folders are empty and its own: that of the
tests' temporary files and that of Ray's. What a test wrote is on no node before it is put there, and a path that only
one node knows fails on the others; the code and the environment stay readable. Elsewhere nodes have working folders of
their own, and no more.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.s3 import ROOT
from tests.ports import free_port, status_at

# The files of a node are copied from what its own disk then covers.
_MOUNT = """
set -e
hidden=$1 ray=$2 disk=$3 files=$4 staging=$5
shift 5
mount -t tmpfs tmpfs "$staging"
mkdir -p "$staging/${disk#"$hidden"/}"
cp -r "$files/." "$staging/${disk#"$hidden"/}"
mount --move "$staging" "$hidden"
mount -t tmpfs tmpfs "$ray"
cd "$disk"
exec "$@"
"""
_NODE_SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node that is killed refuses connections; one that is only slow has the time that the tests' settings give it.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    # Serve's proxy would be killed where a busy machine is slow to start it, and started again.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "3600",
}
_OBJECT_STORE_BYTES = 100_000_000
_SECONDS_TO_ANSWER = 600


@cache
def may_mount() -> bool:
    """Return whether nodes can have disks of their own; if not, say so once."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0:
        return True
    sys.stderr.write("no right to mount: the nodes have working folders of their own, but share the disk\n")
    return False


class Node:
    """One machine: the processes of a raylet."""

    def __init__(self, name: str, ip: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.ip = ip
        self.process = process
        self.log = log
        self._namespace: Path | None = None

    def inside(self, path: Path) -> Path:
        """Return where the test finds what the node has at `path`."""
        return Path(f"/proc/{self.process.pid}/root{path}") if may_mount() else path

    def processes(self) -> list[psutil.Process]:
        """Return all that runs on the node: by its namespace, or else by the session of its processes."""
        return [process for process in psutil.process_iter() if self._has(process.pid) and _alive(process)]

    def encoders(self) -> list[psutil.Process]:
        """Return the encoder actors' processes; of all nodes, where they share the disk."""
        found = self.processes() if may_mount() else psutil.Process().children(recursive=True)
        return [process for process in found if "EncodeBlocks" in _title(process)]

    def kill(self) -> None:
        """End everything on the node at once, as where its power fails."""
        while processes := self.processes():
            for process in processes:
                _kill(process)
            self.process.poll()
        self.process.wait()

    def _has(self, pid: int) -> bool:
        try:
            if self._namespace is None:
                return os.getsid(pid) == self.process.pid
            return self._namespace == _namespace(pid) != _namespace(os.getpid())
        except OSError:  # It has ended.
            return False

    def remember(self) -> None:
        """Note the namespace, which cannot be asked for once the first process is gone."""
        if may_mount():
            self._namespace = _namespace(self.process.pid)


class Job:
    """A running command, its output in a file: what outlives it for a moment would hold a pipe open."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def kill(self) -> None:
        """End the driver by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def status(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait()

    def done(self) -> str:
        """Wait for the end, which must be a success, and return what the job printed."""
        assert self.status() == 0, self.text()
        return self.text()

    def text(self) -> str:
        """Return what the job has printed so far."""
        return self.log.read_text("utf-8", "replace")


class Nodes:
    """A head, which may have no CPUs, and workers; jobs run on any of them."""

    def __init__(self, folder: Path, hidden: Path, files: Path, environment: Mapping[str, str]) -> None:
        """Start nothing yet.

        Args:
            folder: for logs.
            hidden: the folder of the tests' temporary files, of which each node sees one of its own.
            files: what each node has on its disk when it starts, as from an image.
            environment: variables of every process on the nodes, beside the test's own.
        """
        self.disk = hidden / "disk"
        """The working folder on every node; the same path on each, not the same folder."""
        self.nodes: list[Node] = []
        self.files = files
        self._folder, self._hidden = folder, hidden
        self._environment = {**os.environ, **_NODE_SETTINGS, **environment, "DIFFRETRIEVER_CACHE": f"{self.disk}/cache"}
        self._port, self._agent_port, dashboard = free_port(), free_port(), free_port()
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        """Where the head takes jobs and applications."""
        self._started = 0
        self._jobs: list[Job] = []

    @property
    def address(self) -> str:
        """Where the head answers."""
        return f"{self.nodes[0].ip}:{self._port}"

    def add(self, name: str, cpus: int) -> Node:
        """Start a node and wait until the cluster has it; the first one is the head.

        Raises:
            RuntimeError: it ended instead.
        """
        self._started += 1
        ip = f"127.0.1.{self._started}"
        dashboard = ["--include-dashboard", "true", "--dashboard-port", self.dashboard.rpartition(":")[2]]
        head = ["--head", "--port", str(self._port), *dashboard, "--no-monitor"]
        # Beside the head of another session, one with a port that is taken would end.
        head += ["--ray-client-server-port", str(free_port())]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address", ip]
        ray += ["--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", str(_OBJECT_STORE_BYTES)]
        agent_port = free_port() if self.nodes else self._agent_port
        ray += ["--dashboard-agent-listen-port", str(agent_port), "--disable-usage-stats"]
        ray += ["--include-log-monitor", "false", *(["--address", self.address] if self.nodes else head)]
        log, working = self._folder / f"{name}-{self._started}.log", self.disk
        command = ray
        if may_mount():
            staging = self._folder / f"{name}-{self._started}"
            staging.mkdir()
            places = map(str, (self._hidden, os.environ["RAY_TMPDIR"], self.disk, self.files, staging))
            command = ["unshare", "--mount", "bash", "-c", _MOUNT, name, *places, *ray]
            working = ROOT
        else:
            shutil.copytree(self.files, working, dirs_exist_ok=True)
        process = self._launched(command, log, working, own_session=True)
        node = Node(name, ip, process, log)
        self.nodes.append(node)
        self._wait_for(node)
        return node

    def _wait_for(self, node: Node) -> None:
        while node.ip not in self._alive():
            if node.process.poll() is not None:
                self.nodes.remove(node)
                raise RuntimeError(f"node {node.name} did not start:\n{node.log.read_text()}")
            time.sleep(0.1)
        node.remember()

    def _alive(self) -> dict[str, Any]:
        """Return ip → what the cluster says of each node that it believes alive."""
        with socket.socket() as one:
            if one.connect_ex((self.nodes[0].ip, self._port)):
                return {}
        infos = self._client.get_all_node_info(timeout=_SECONDS_TO_ANSWER).values()
        return {info.node_manager_address: info for info in infos if info.state == info.ALIVE}

    @cached_property
    def _client(self) -> Any:
        from ray._private.services import GcsClient

        return GcsClient(address=self.address)

    def cpus(self) -> list[int]:
        """Return how many CPUs the cluster's living nodes have, ascending."""
        return sorted(int(info.resources_total.get("CPU", 0)) for info in self._alive().values())

    def kill(self, node: Node) -> None:
        """End a node at once and for good, and wait until the cluster knows."""
        node.kill()
        self.nodes.remove(node)
        while node.ip in self._alive():
            time.sleep(0.1)

    def start(self, node: Node, program: str, *flags: object) -> Job:
        """Start a job of `jobs/` on a node.

        Args:
            node: whose files, and whose raylet, the driver has.
            program: the job's file.
            flags: its flags.
        """
        on_node = [str(Path(__file__).with_name("on_node.py")), node.ip, str(ROOT / "jobs" / program)]
        command = ["env", f"RAY_ADDRESS={self.address}", "python", *on_node, *map(str, flags)]
        working = self.disk
        if may_mount():
            command = ["nsenter", f"--target={node.process.pid}", "--mount", "--wd", *command]
            working = ROOT
        return self._begun(command, working)

    def outside(self, folder: Path, *words: object) -> Job:
        """Start `python WORDS` in a folder of this machine, which no node sees: what a person does who is on none.

        The head then takes jobs and applications at `dashboard`.
        """
        for url in (f"{self.dashboard}/api/version", f"http://{self.nodes[0].ip}:{self._agent_port}/api/healthz"):
            while status_at(url) != 200:
                assert self.nodes[0].process.poll() is None, self.nodes[0].log.read_text()
                time.sleep(0.1)
        return self._begun(["python", *map(str, words)], folder)

    def _begun(self, command: list[str], folder: Path) -> Job:
        log = self._folder / f"job-{len(self._jobs)}.log"
        self._jobs.append(Job(self._launched(command, log, folder, own_session=False), log))
        return self._jobs[-1]

    def _launched(self, command: list[str], log: Path, folder: Path, *, own_session: bool) -> subprocess.Popen[bytes]:
        with log.open("wb") as stream:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=folder,
                start_new_session=own_session,
            )

    def close(self) -> list[psutil.Process]:
        """End all jobs and nodes; return what is alive then, which is nothing."""
        for job in self._jobs:
            job.kill()
        nodes = self.nodes[::-1]
        for node in nodes:
            node.kill()
        self.nodes.clear()
        return [process for node in nodes for process in node.processes()]


def _namespace(pid: int) -> Path:
    return (Path("/proc") / str(pid) / "ns" / "mnt").readlink()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return
