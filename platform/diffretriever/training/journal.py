"""The course of a training for people: a line in the terminal, TensorBoard's curves, `metrics.jsonl`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TextIO

from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
from tqdm import tqdm

_LOG_EVERY_SECONDS = 10.0
Record = dict[str, float]
"""`step`, and either the fields of `StepMetrics` or `validation/MODE` measures."""


class Journal:
    """Takes records in the order of their steps; of two lines with the same step and fields the later one counts."""

    def __init__(self, folder: Path, label: str, total_steps: int, stream: TextIO | None = None) -> None:
        self._folder, self._label, self._total = folder, label, total_steps
        self._stream = stream or sys.stderr
        self._logged = 0.0
        self._writer: SummaryWriter | None = None
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> Journal:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._stream.isatty():
            self._bar = tqdm(total=self._total, desc=self._label, unit="step", file=self._stream)
        else:
            self._print(f"{self._label}: {self._total:,} steps")
        return self

    def add(self, record: Record) -> None:
        """Take note of a record."""
        step = int(record["step"])
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        if self._writer is None:
            # What a killed run wrote of later steps is taken back.
            self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step)
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)
        self._show(step, record)

    def _show(self, step: int, record: Record) -> None:
        if "loss" not in record:
            measured = ", ".join(f"{name} {value:.4f}" for name, value in record.items() if name != "step")
            self._print(f"{self._label}: step {step:,}: {measured}")
            return
        figures = (
            f"loss {record['loss']:.4f}, accuracy {record['accuracy']:.3f}, {record['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._logged >= _LOG_EVERY_SECONDS or step == self._total:
            self._logged = time.monotonic()
            self._print(f"{self._label}: {step:,}/{self._total:,} ({100 * step // self._total} %), {figures}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
            return
        print(text, file=self._stream, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            self._bar.close()
