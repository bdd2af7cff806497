"""The machines of a cluster, those that are alive and those that it can add, and what has room on them.

Ray's autoscaler tells a job nothing of what it can add. But whoever runs it wrote that down: for Ray's own launcher in
the file that the head's autoscaler was started with, for KubeRay in the RayCluster, which the head's pod may read. A
platform that reports it to Ray is asked first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
import yaml

_HEAD = "node:__internal_head__"
"""A resource that only the head has."""
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_UNLIMITED = 1 << 30
# Ray counts resources in ten-thousandths.
_ROUNDING = 1e-9


class Share(NamedTuple):
    """What an actor takes of a machine, or a machine has."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        cpus = f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"
        return f"{self.gpus:g} GPU{'s' * (self.gpus != 1)} and {cpus}" if self.gpus else cpus

    def fits(self, machine: Share) -> int:
        """Return how many of these a machine has room for."""
        return min(int(has / takes + _ROUNDING) for has, takes in zip(machine, self, strict=True) if takes)


class Kind(NamedTuple):
    """Machines that a cluster can add."""

    machine: Share
    most: int
    """How many of them there may be, those that are alive included."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What a cluster has, and what it can have."""

    alive: tuple[Share, ...]
    head: Share
    """The alive one that never goes."""
    kinds: tuple[Kind, ...] | None
    """None: nobody here can say."""
    limit: int = _UNLIMITED
    """Most machines of all kinds together."""

    def room(self, share: Share, beside: float = 0.0) -> int:
        """Return how many shares the machines that are alive have room for, with `beside` CPUs left for other work."""
        return _room(((machine, 1) for machine in self.alive), share, beside)

    def most_room(self, share: Share, beside: float = 0.0) -> int:
        """Return how many shares the cluster can come to have room for; without limit where nobody can say."""
        if self.kinds is None:
            return _UNLIMITED
        left, grown = self.limit, [(self.head, 1)]
        for kind in sorted(self.kinds, key=lambda kind: -share.fits(kind.machine)):
            grown.append((kind.machine, min(kind.most, left)))
            left -= grown[-1][1]
        # Machines that joined by themselves are of no kind.
        return max(self.room(share, beside), _room(grown, share, beside))

    def addable(self, share: Share) -> int:
        """Return how many machines with room for a share may come."""
        return min(self.limit, sum(kind.most for kind in self.kinds or () if share.fits(kind.machine)))

    def gpus_for_model(self, flag: str, *, autoscale: bool) -> float:
        """Return the GPUs that each actor with a model is to have: one where the cluster has any or can get any.

        Args:
            flag: of the command line, that says how many.
            autoscale: whether machines may come.

        Raises:
            ValueError: machines may come, and nobody here can say whether any has a GPU.
        """
        if any(machine.gpus for machine in self.alive):
            return 1.0
        if not autoscale:
            return 0.0
        if self.kinds is None:
            raise ValueError(
                f"--autoscale: no GPU is alive, and what this cluster can add cannot be seen from here: say {flag} 1 "
                f"to wait for machines with a GPU, or {flag} 0 to use CPUs"
            )
        return float(any(kind.machine.gpus and kind.most for kind in self.kinds))


def _room(machines: Iterable[tuple[Share, int]], share: Share, beside: float) -> int:
    counted = list(machines)
    cpus = sum(machine.cpus * count for machine, count in counted)
    room = sum(share.fits(machine) * count for machine, count in counted)
    return max(0, min(room, int((cpus - beside) / share.cpus + _ROUNDING)))


def check_room(machines: Machines, share: Share, wanted: int, beside: float, *, autoscale: bool) -> str | None:
    """Return why there will never be room for `wanted` actors; None if there is, or if machines with room may come.

    Says on stderr what it waits for where not one actor has room now.

    Args:
        machines: of the cluster.
        share: what each actor takes.
        wanted: how many there are to be, at least 1.
        beside: CPUs for other work.
        autoscale: whether machines may come.
    """
    now = machines.room(share, beside)
    most = machines.most_room(share, beside) if autoscale else now
    if wanted > most:
        cpus, gpus = (sum(values) for values in zip(*machines.alive, strict=True))
        grown = " and can add machines" if autoscale and machines.kinds else ""
        return f"the cluster has {cpus:g} CPUs and {gpus:g} GPUs{grown}, which leaves room for {most}"
    if now == 0:
        count = "" if machines.kinds is None else f" up to {machines.addable(share)}"
        sys.stderr.write(
            f"waiting for a machine with {share}: none with room is alive yet, the cluster may add{count}\n"
        )
    return None


def see_machines() -> Machines:
    """Return the machines of the cluster that this process is connected to."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    shares = [Share(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
    head = next((share for share, node in zip(shares, nodes, strict=True) if _HEAD in node), Share(0.0, 0.0))
    reported = ray._private.state.state.get_cluster_config()  # noqa: SLF001  (Ray has no public name for it)
    if reported is not None and reported.node_group_configs:
        kinds = [(dict(group.resources), group.max_count) for group in reported.node_group_configs]
        return Machines(tuple(shares), head, tuple(_kind(*kind) for kind in kinds))
    config = _autoscaler_config()
    if config is None:
        return Machines(tuple(shares), head, None)
    limit = int(config.get("max_workers", _UNLIMITED))
    return Machines(tuple(shares), head, kinds_in(config), limit)


def kinds_in(config: Mapping[str, Any]) -> tuple[Kind, ...] | None:
    """Return the kinds of machines in an autoscaler's config; None if it leaves to a machine what it has."""
    kinds = []
    for name, entry in config.get("available_node_types", {}).items():
        if name == config.get("head_node_type"):
            continue
        kind = _kind(entry.get("resources", {}), int(entry.get("max_workers", config.get("max_workers", 0))))
        if kind.most and not any(kind.machine):
            return None
        kinds.append(kind)
    return tuple(kinds)


def _kind(resources: Mapping[str, float], most: int) -> Kind:
    machine = Share(float(resources.get("CPU", 0.0)), float(resources.get("GPU", 0.0)))
    return Kind(machine, _UNLIMITED if most < 0 else most)


def _autoscaler_config() -> Mapping[str, Any] | None:
    """Return what the autoscaler follows: nothing where Ray runs without one, None where that cannot be seen."""
    if "KUBERNETES_SERVICE_HOST" in os.environ and "RAY_CLUSTER_NAME" in os.environ:
        return _config_of_kuberay(os.environ["RAY_CLUSTER_NAME"])
    address = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if address in words and any(word.endswith("/monitor.py") for word in words):
            return _config_of_monitor(words)
    return None


def _config_of_monitor(words: Iterable[str]) -> Mapping[str, Any] | None:
    flag = "--autoscaling-config="
    file = next((word.removeprefix(flag) for word in words if word.startswith(flag)), None)
    if file is None:
        return {}
    try:
        config: Mapping[str, Any] = yaml.safe_load(Path(file).expanduser().read_text("utf-8"))
    except OSError:
        return None
    return config


def _config_of_kuberay(cluster: str) -> Mapping[str, Any] | None:
    from ray.autoscaler._private.kuberay.autoscaling_config import AutoscalingConfigProducer

    try:
        config: Mapping[str, Any] = AutoscalingConfigProducer(cluster, _NAMESPACE.read_text("utf-8").strip())()
    except (OSError, KeyError, ValueError):
        return None
    return config
