"""The figures of this benchmark: measured in turn, each in a process of its own, and laid out."""

from __future__ import annotations

import math
import os
import statistics
import sys
from pathlib import Path
from unittest import mock

from benchmarks.measuring import in_child
from diffretriever.schemas.base import Model
from diffretriever.schemas.training import Recipe

COLUMNS = ("", "Trainer tokens/s", "ours", "ratio", "by CPU time", "Trainer peak MB", "ours", "ratio", "each ratio")
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
    name = "checkpointing" if setting.recipe.gradient_checkpointing else "no checkpointing"
    baseline, other = list[Run](), list[Run]()
    for repeat in range(repeats):
        plain, ours = _run("plain", setting), _run("ours", setting)
        if not math.isclose(plain.losses[0], ours.losses[0], rel_tol=_SAME_LOSS[setting.dtype]):
            raise RuntimeError(
                f"{name}: the first loss is {plain.losses[0]} with the Trainer, {ours.losses[0]} with ours"
            )
        baseline.append(plain)
        other.append(ours)
        rates = f"Trainer {plain.tokens_per_second:.0f}, ours {ours.tokens_per_second:.0f}"
        sys.stderr.write(f"{name} {repeat + 1}/{repeats}: {rates} tokens/s\n")
    with mock.patch.dict(os.environ, _GIVING_BACK):
        peaks_mb = _run("plain", setting).peak_mb, _run("ours", setting).peak_mb
    return Figures(name=name, baseline=baseline, other=other, peaks_mb=peaks_mb)


def _run(function: str, setting: Setting) -> Run:
    return Run.model_validate(in_child("benchmarks.train.loops", function, setting=setting.model_dump(mode="json")))
