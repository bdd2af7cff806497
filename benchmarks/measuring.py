"""What the benchmarks share: their command, measuring in fresh processes, ratios within one run, the report."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from benchmarks import ROOT
from diffretriever.schemas.base import Model
from diffretriever.schemas.settings import JobConfig

COLUMNS = ("", "baseline", "ours", "ratio", "goal", "each ratio")
"""Of a table of comparisons."""
_PACKAGES = ("torch", "transformers", "ray")
C = TypeVar("C", bound=JobConfig)


class Benchmark(JobConfig):
    """What every benchmark can be told."""

    output: Path | None = None
    """JSON file for all figures."""

    def report(self, about: dict[str, str], text: str, **figures: Any) -> None:
        """Print what `header` said and then `text`; write the former and the figures as JSON if asked to."""
        print_report(about, text)
        self.write(about, **figures)

    def write(self, about: dict[str, str], **figures: Any) -> None:
        """Write what `header` said and the figures as JSON if asked to."""
        if self.output is not None:
            content = {**about, "settings": self.model_dump(mode="json"), **figures}
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def run(config_class: type[C], main: Callable[[C], None]) -> None:
    """Fill the config from the command line of `python -m MODULE`, and call `main`."""
    module = sys.modules["__main__"].__spec__
    assert module is not None, "benchmarks are run by `python -m`"
    sys.argv[0] = f"python -m {module.name.removesuffix('.__main__')}"
    main(config_class.from_command_line())


def header() -> dict[str, str]:
    """Return command, date, machine and versions, which every figure goes with."""
    names = [line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cpu = names[0].partition(": ")[2] if names else platform.machine()
    return {
        "command": f"{sys.argv[0]} {shlex.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, {memory:.0f} GB",
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in _PACKAGES)]),
    }


def print_report(about: dict[str, str], text: str) -> None:
    """Print what `header` said and then `text`."""
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    print(text)


class Sample(Model):
    """One measurement."""

    rate: float
    """Passages per second."""
    peak_mb: float
    """Most memory the process ever held, in MB."""


class Comparison(Model):
    """Repeated pairs of measurements, baseline and ours taken in turn."""

    name: str
    baseline: list[Sample]
    ours: list[Sample]
    goal: float
    """Least ratio of the rates, ours over the baseline's."""

    @property
    def ratios(self) -> list[float]:
        """Of the rates, one a pair: what slows the machine for a while slows both halves of a pair."""
        return [ours.rate / base.rate for ours, base in zip(self.ours, self.baseline, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of `ratios`."""
        return statistics.median(self.ratios)

    def rows(self) -> list[list[str]]:
        """Return the rows of the printed table: rate and memory."""
        rates = [statistics.median(sample.rate for sample in samples) for samples in (self.baseline, self.ours)]
        peaks = [max(sample.peak_mb for sample in samples) for samples in (self.baseline, self.ours)]
        verdict = f">= {self.goal:.2f}, {'met' if self.ratio >= self.goal else 'MISSED'}"
        each = " ".join(f"{ratio:.2f}" for ratio in self.ratios)
        return [
            [f"{self.name}, passages/s", *(f"{rate:.1f}" for rate in rates), f"{self.ratio:.2f}", verdict, each],
            [f"{self.name}, peak MB", *(f"{peak:.0f}" for peak in peaks), f"{peaks[1] / peaks[0]:.2f}", "", ""],
        ]


def compare(
    name: str, goal: float, repeats: int, baseline: Callable[[], Sample], ours: Callable[[], Sample]
) -> Comparison:
    """Measure baseline and ours in turn, `repeats` times each."""
    pairs: list[tuple[Sample, Sample]] = []
    for repeat in range(repeats):
        pairs.append((baseline(), ours()))
        rates = [sample.rate for sample in pairs[-1]]
        sys.stderr.write(f"{name} {repeat + 1}/{repeats}: baseline {rates[0]:.1f}, ours {rates[1]:.1f} passages/s\n")
    return Comparison(name=name, goal=goal, baseline=[b for b, _ in pairs], ours=[o for _, o in pairs])


def in_child(module: str, function: str, **arguments: Any) -> Any:
    """Return what `function` of `module` returns in a fresh process, whose peak memory is then its own.

    The module's main must be `serve_child`. What the child has to say in between comes out on stderr.
    """
    paths = [str(ROOT), str(ROOT / "platform"), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.run(
        [sys.executable, "-m", module, function, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(child.stdout.splitlines()[-1])


def serve_child(functions: dict[str, Callable[..., Any]]) -> None:
    """Be the child that `in_child` started."""
    result = functions[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(result.model_dump() if isinstance(result, Model) else result))


def peak_mb(process: int | str = "self") -> float:
    """Return the most memory a live process ever held, in MB.

    From /proc, because getrusage of a child starts at what its parent held.
    """
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


@contextmanager
def watched(title: str) -> Iterator[list[float]]:
    """Collect the peak memory of this process's descendants with `title` in their names, while the block runs."""
    peaks: list[float] = []
    done = Event()

    def watch() -> None:
        while not done.wait(0.2):
            # A process may end while it is looked at.
            with suppress(OSError, StopIteration):
                titled = [process for process in _descendants(os.getpid()) if title in _command(process)]
                peaks.extend(map(peak_mb, titled))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text("utf-8", "replace")
