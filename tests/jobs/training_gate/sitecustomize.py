"""On the PYTHONPATH of a training's workers, holds them at a step until a test has seen what it waits for.

In the folder `$TRAINING_GATE` a file named after a step keeps workers from beginning it; with `die-STEP` beside it, one
of them takes both files away and kills itself: no test depends on how fast a worker is, or how late its figures come.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TRAINING_GATE"
_LOOP = "diffretriever.training.loop"


class _Gate(MetaPathFinder):
    """Puts the gate into the training loop when that is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _LOOP:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _put_before_steps(module)

        loader.exec_module = executed
        return spec


def _put_before_steps(loop: Any) -> None:
    run = loop.Trainer.run

    def gated(trainer: Any) -> Iterator[Any]:
        steps = run(trainer)
        while True:
            _wait(trainer.step + 1)
            try:
                metrics = next(steps)
            except StopIteration:
                return
            yield metrics

    loop.Trainer.run = gated


def _wait(step: int) -> None:
    folder = Path(os.environ[VARIABLE])
    while (folder / str(step)).exists():
        try:
            (folder / f"die-{step}").unlink()
        except FileNotFoundError:
            time.sleep(0.05)
            continue
        (folder / str(step)).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Gate())
