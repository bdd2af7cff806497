"""The folder of one training: what it is of, its course, and the adapter in the end. One folder, one training.

The course is there for people: a line in the terminal, TensorBoard's curves, `metrics.jsonl`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TextIO

import yaml
from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
from tqdm import tqdm

from diffretriever.files import whole_folder, write_text
from diffretriever.training.adapters import ADAPTER, check_trained
from diffretriever.training.loop import Record
from schemas.retriever import BackboneRetriever, is_trainable
from schemas.training import MANIFEST_FILE, TrainingManifest, TrainJob

_LOG_EVERY_SECONDS = 10.0


class RunFolder:
    """Files of a training.

    Attributes:
        path: the folder.
        checkpoints: Ray's folder of checkpoints in it.
        adapter: the trained adapter, there only once the training has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.checkpoints = self.path / "checkpoints"
        self.adapter = self.path / ADAPTER
        self._begun = self.path / "run.json"

    @property
    def finished(self) -> bool:
        """Whether the training has ended."""
        return self.adapter.is_dir()

    def begin(self, manifest: TrainingManifest, job: TrainJob) -> TrainingManifest:
        """Claim the folder for this training, or find that it is its own already.

        Raises:
            ValueError: another training has been here; the message names the fields that differ.
        """
        if self._begun.is_file():
            begun = TrainingManifest.model_validate_json(self._begun.read_text("utf-8"))
            if differing := begun.differences(manifest):
                raise ValueError(
                    f"{self.path} holds another training (there != this one):\n  " + "\n  ".join(differing) + "\n"
                    "Give another --output, or the same settings to go on with it."
                )
            return begun
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "train.yaml", job.to_yaml())
        write_text(self._begun, manifest.model_dump_json(indent=2) + "\n")
        return manifest

    def with_dtype(self, retriever: BackboneRetriever) -> BackboneRetriever:
        """Return the retriever in the precision that the training here was begun in, if its own is `auto`.

        Raises:
            ValueError: what was begun here is no training.
        """
        if retriever.backbone.dtype != "auto" or not self._begun.is_file():
            return retriever
        begun = TrainingManifest.model_validate_json(self._begun.read_text("utf-8")).retriever
        if not is_trainable(begun):
            raise ValueError(f"{self._begun}: a training of {begun.method}, which cannot be trained: remove the folder")
        place = retriever.backbone.model_copy(update={"dtype": begun.backbone.dtype})
        return retriever.model_copy(update={"backbone": place})

    def finish(self, checkpoint: Path) -> TrainingManifest:
        """Copy the adapter of the last checkpoint, and write `retriever.yaml`, which encodes with it.

        Raises:
            ValueError: the copy is not a trained adapter.
        """
        with whole_folder(self.adapter) as folder:
            shutil.copytree(checkpoint / ADAPTER, folder, dirs_exist_ok=True)
            check_trained(folder, self._manifest(folder).step)
        manifest = self._manifest(self.adapter)
        retriever = manifest.retriever.model_dump(mode="json", exclude_defaults=True) | {
            "method": manifest.retriever.method
        }
        retriever["backbone"]["adapter"] = str(self.adapter)
        write_text(self.path / "retriever.yaml", yaml.safe_dump(retriever, sort_keys=False))
        return manifest

    def result(self) -> TrainingManifest:
        """Return what the finished training says of itself."""
        return self._manifest(self.adapter)

    def _manifest(self, adapter: Path) -> TrainingManifest:
        return TrainingManifest.model_validate_json((adapter / MANIFEST_FILE).read_text("utf-8"))


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
