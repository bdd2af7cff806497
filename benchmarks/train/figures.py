"""The figures of this benchmark: measured in turn, each in a process of its own, and laid out."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks.measuring import in_child
from diffretriever.schemas.base import Model
from diffretriever.schemas.training import Recipe

COLUMNS = ("", "Trainer tokens/s", "ours", "ratio", "by CPU time", "Trainer peak MB", "ours", "ratio", "each ratio")
COLUMNS_STRATEGIES = (
    *("", "ddp tokens/s", "deepspeed", "ratio", "by CPU time"),
    *("ddp peak MB", "deepspeed", "ratio", "each ratio"),
)
_STRATEGIES = ("ddp", "deepspeed")
_SAME_LOSS = {"float32": 1e-3, "bfloat16": 0.05}
"""Relative difference of the first losses, by the precision of the weights: the two loops round differently."""
_GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Makes glibc give freed tensors back at once, which takes a quarter of the speed. Without it a process holds up to
twice what its tensors need, by chance more with one loop or the other."""


class Run(Model):
    """A measured training."""

    tokens_per_second: float
    """Of all texts, prompts and slots included, padding not; without the first step."""
    tokens_per_cpu_second: float
    """The same by the time that the process was at work, on all its threads: others on the machine matter less."""
    peak_mb: float
    """Most memory of the process, on a GPU most memory of tensors on it, in MB."""
    losses: list[float]
    """Of each step."""
    flops_per_second: float = 0.0
    """That the model needs for these tokens, `backbones.flops`; 0 where nobody counts."""


class Setting(Model):
    """Retriever, recipe and data."""

    retriever: Path
    """YAML file of the retriever."""
    dtype: str
    """Precision of its weights."""
    recipe: Recipe
    """`max_steps` is the first step, which is not measured, and those that are."""
    collection: str
    """Whose passages are learned."""
    device: str
    """`cpu`, `cuda`, or `auto`."""


class Figures(Model):
    """Of one kind of step, two loops taken in turn."""

    name: str
    baseline: list[Run]
    other: list[Run]
    peaks_mb: tuple[float, float]
    """Most memory of both, in runs of their own in which freed memory is given back at once."""

    @property
    def ratios(self) -> list[float]:
        """Of the rates, one a pair: what slows the machine for a while slows both halves of a pair."""
        return [o.tokens_per_second / b.tokens_per_second for o, b in zip(self.other, self.baseline, strict=True)]

    @property
    def cpu_ratios(self) -> list[float]:
        """The same by the processor's time."""
        pairs = zip(self.other, self.baseline, strict=True)
        return [other.tokens_per_cpu_second / base.tokens_per_cpu_second for other, base in pairs]

    def row(self) -> list[str]:
        """Return the row of the printed table."""
        rates = [statistics.median(run.tokens_per_second for run in runs) for runs in (self.baseline, self.other)]
        return [
            self.name,
            *(f"{rate:.0f}" for rate in rates),
            f"{statistics.median(self.ratios):.2f}",
            f"{statistics.median(self.cpu_ratios):.2f}",
            *(f"{peak:.0f}" for peak in self.peaks_mb),
            f"{self.peaks_mb[1] / self.peaks_mb[0]:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in self.ratios),
        ]


def measured(setting: Setting, repeats: int) -> Figures:
    """Measure the Trainer's loop and ours in turn, `repeats` times each, and then their memory.

    Raises:
        RuntimeError: they do not begin with the same loss.
    """
    loops = {"Trainer": partial(_run, "plain", setting), "ours": partial(_run, "ours", setting)}
    return _in_turn(_name(setting), loops, repeats, slice(1), _SAME_LOSS[setting.dtype])


def strategies(setting: Setting, workers: int, repeats: int) -> Figures:
    """Measure plain data parallelism and ZeRO-2 likewise, on so many workers of this machine.

    Raises:
        RuntimeError: the loss of a step is not the same.
    """
    loops = {each: partial(_run, "by_strategy", _with(setting, each), workers=workers) for each in _STRATEGIES}
    name = f"{_name(setting)}, {workers} worker{'s' * (workers > 1)}"
    return _in_turn(name, loops, repeats, slice(None), _SAME_LOSS[setting.dtype])


def _with(setting: Setting, strategy: str) -> Setting:
    return setting.model_copy(update={"recipe": setting.recipe.model_copy(update={"strategy": strategy})})


def _in_turn(
    name: str, loops: Mapping[str, Callable[[], Run]], repeats: int, compared: slice, tolerance: float
) -> Figures:
    """Measure two loops, baseline first, in turn.

    Args:
        name: of the row.
        loops: by what they are called.
        repeats: of each.
        compared: the losses that must be the same.
        tolerance: how much they may differ, relative.
    """
    runs: dict[str, list[Run]] = {label: [] for label in loops}
    for repeat in range(repeats):
        for label, loop in loops.items():
            runs[label].append(loop())
        losses = {label: own[-1].losses[compared] for label, own in runs.items()}
        _check_same(name, losses, tolerance)
        rates = ", ".join(f"{label} {own[-1].tokens_per_second:.0f}" for label, own in runs.items())
        sys.stderr.write(f"{name} {repeat + 1}/{repeats}: {rates} tokens/s\n")
    with mock.patch.dict(os.environ, _GIVING_BACK):
        first_mb, second_mb = (loop().peak_mb for loop in loops.values())
    baseline, other = runs.values()
    return Figures(name=name, baseline=baseline, other=other, peaks_mb=(first_mb, second_mb))


def _name(setting: Setting) -> str:
    return "checkpointing" if setting.recipe.gradient_checkpointing else "no checkpointing"


def _run(function: str, setting: Setting, **arguments: int) -> Run:
    given = {"setting": setting.model_dump(mode="json"), **arguments}
    return Run.model_validate(in_child("benchmarks.train.loops", function, **given))


def _check_same(name: str, losses: dict[str, list[float]], tolerance: float) -> None:
    (first, of_first), (second, of_second) = losses.items()
    for step, (loss, other) in enumerate(zip(of_first, of_second, strict=True), start=1):
        if not math.isclose(loss, other, rel_tol=tolerance):
            raise RuntimeError(f"{name}: the loss of step {step} is {loss} with {first}, {other} with {second}")
