"""The folder of one training: what it is of, its course, and the adapter in the end. One folder, one training.

The folder is local or on an object store. The course is there for people: a line in the terminal, TensorBoard's curves,
`metrics.jsonl`. These files grow, which those of an object store cannot: they are kept in a folder of this machine, and
put to the store at every checkpoint and at the end.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TextIO

import yaml
from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
from tqdm import tqdm

from diffretriever.files import (
    AnyPlace,
    is_file,
    put_file,
    put_folder,
    read_bytes,
    read_model,
    whole_folder,
    write_text,
)
from diffretriever.schemas.base import counted
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.retriever import BackboneRetriever, is_trainable
from diffretriever.schemas.training import MANIFEST_FILE, TrainingManifest, TrainJob
from diffretriever.training.adapters import ADAPTER, check_trained
from diffretriever.training.loop import Record

METRICS_FILE = "metrics.jsonl"
_CURVES = "tensorboard"
_ANEW = "restore the file from a copy, or train anew in another --output"
_LOG_EVERY_SECONDS = 10.0


class RunFolder:
    """Files of a training.

    Attributes:
        place: the folder, a path or the URI of an object store.
        checkpoints: Ray's folder of checkpoints in it.
        adapter: the trained adapter, there only once the training has ended.
    """

    def __init__(self, place: AnyPlace) -> None:
        found = as_place(place)
        self.place = found.absolute() if isinstance(found, Path) else found
        self.checkpoints = self.place / "checkpoints"
        self.adapter = self.place / ADAPTER
        self._begun = self.place / "run.json"

    @property
    def begun(self) -> bool:
        """Whether a training has begun here, as far as this machine sees."""
        return is_file(self._begun)

    @property
    def finished(self) -> bool:
        """Whether the training has ended."""
        return is_file(self.adapter / MANIFEST_FILE)

    def begin(self, manifest: TrainingManifest, job: TrainJob) -> TrainingManifest:
        """Claim the folder for this training, or find that it is its own already.

        Raises:
            ValueError: another training has been here, and the message names the fields that differ; or this one cannot
                go on with another number of workers, and the message says why.
        """
        if self.begun:
            begun = read_model(self._begun, TrainingManifest, _ANEW)
            if differing := begun.differences(manifest):
                raise ValueError(
                    f"{self.place} holds another training (there != this one):\n  " + "\n  ".join(differing) + "\n"
                    "Give another --output, or the same settings to go on with it."
                )
            return self._with_workers(begun, manifest.workers)
        write_text(self.place / "train.yaml", job.to_yaml())
        write_text(self._begun, manifest.model_dump_json(indent=2) + "\n")
        return manifest

    def _with_workers(self, begun: TrainingManifest, workers: int) -> TrainingManifest:
        if workers != begun.workers and not self.finished and (reason := begun.recipe.bound_to_workers):
            raise ValueError(
                f"{self.place}: a training that was begun with --workers {begun.workers} cannot go on with {workers}: "
                f"{reason}. Give the same number, or begin anew in another --output."
            )
        return begun.model_copy(update={"workers": workers})

    def with_dtype(self, retriever: BackboneRetriever) -> BackboneRetriever:
        """Return the retriever in the precision that the training here was begun in, if its own is `auto`.

        Raises:
            ValueError: what was begun here is no training.
        """
        if retriever.backbone.dtype != "auto" or not self.begun:
            return retriever
        begun = read_model(self._begun, TrainingManifest, _ANEW).retriever
        if not is_trainable(begun):
            raise ValueError(f"{self._begun}: a training of {begun.method}, which cannot be trained: remove the folder")
        place = retriever.backbone.model_copy(update={"dtype": begun.backbone.dtype})
        return retriever.model_copy(update={"backbone": place})

    def finish(self, checkpoint: Path) -> TrainingManifest:
        """Write `retriever.yaml`, and copy the adapter of the last checkpoint, with which that encodes.

        Args:
            checkpoint: a local folder.

        Raises:
            ValueError: it holds no trained adapter.
        """
        trained = checkpoint / ADAPTER
        manifest = self._manifest(trained)
        check_trained(trained, manifest.step)
        retriever = manifest.retriever.model_dump(mode="json", exclude_defaults=True) | {
            "method": manifest.retriever.method
        }
        retriever["backbone"]["adapter"] = str(self.adapter)
        write_text(self.place / "retriever.yaml", yaml.safe_dump(retriever, sort_keys=False))
        # Last: it says that the training has ended.
        if isinstance(self.adapter, StorePath):
            put_folder(trained, self.adapter, last=MANIFEST_FILE)
        else:
            with whole_folder(self.adapter) as folder:
                shutil.copytree(trained, folder, dirs_exist_ok=True)
        return manifest

    def result(self) -> TrainingManifest:
        """Return what the finished training says of itself."""
        return self._manifest(self.adapter)

    def _manifest(self, adapter: Path | StorePath) -> TrainingManifest:
        return read_model(adapter / MANIFEST_FILE, TrainingManifest, _ANEW)


class Journal:
    """Takes records in the order of their steps; of two lines with the same step and fields the later one counts."""

    def __init__(
        self, place: AnyPlace, label: str, total_steps: int, put_every: int, stream: TextIO | None = None
    ) -> None:
        """Get ready.

        Args:
            place: folder of the training.
            label: what is trained, for people.
            total_steps: of the whole training.
            put_every: steps after which the files are put to an object store.
            stream: where lines for people go; default: standard error.
        """
        self._place, self._label, self._total, self._put_every = as_place(place), label, total_steps, put_every
        self._stream = stream or sys.stderr
        self._logged = 0.0
        self._writer: SummaryWriter | None = None
        self._bar: tqdm[NoReturn] | None = None
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path()

    def __enter__(self) -> Journal:
        if isinstance(self._place, StorePath):
            self._own = tempfile.TemporaryDirectory(prefix="journal-")
            self._folder = Path(self._own.name)
            if is_file(self._place / METRICS_FILE):
                (self._folder / METRICS_FILE).write_bytes(read_bytes(self._place / METRICS_FILE))
        else:
            self._folder = self._place
            self._folder.mkdir(parents=True, exist_ok=True)
        if self._stream.isatty():
            self._bar = tqdm(total=self._total, desc=self._label, unit="step", file=self._stream)
        else:
            self._print(f"{self._label}: {counted(self._total, 'steps')}")
        return self

    def add(self, record: Record) -> None:
        """Take note of a record."""
        step = int(record["step"])
        with (self._folder / METRICS_FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        if self._writer is None:
            # What a killed run wrote of later steps is taken back.
            # By itself the name holds the machine's and the second: attempts on two machines may share both.
            suffix = f".{uuid.uuid4().hex}"
            self._writer = SummaryWriter(str(self._folder / _CURVES), purge_step=step, filename_suffix=suffix)
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)
        self._show(step, record)
        if step % self._put_every == 0:
            self._try_to_put()

    def _show(self, step: int, record: Record) -> None:
        if "loss" not in record:
            measured = ", ".join(f"{name} {value:.4f}" for name, value in record.items() if name != "step")
            self._print(f"{self._label}: step {step:,}: {measured}")
            return
        figures = (
            f"loss {record['loss']:.4f}, accuracy {record['accuracy']:.3f}, "
            f"{record['tokens_per_second']:,.0f} tokens/s, {100 * record['utilisation']:.0f} % of the device's FLOPs"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._logged >= _LOG_EVERY_SECONDS or step == self._total:
            self._logged = time.monotonic()
            self._print(f"{self._label}: {step:,}/{self._total:,} ({100 * step // self._total} %), {figures}")

    def _try_to_put(self) -> None:
        try:
            self._put()
        except (ValueError, OSError) as error:
            self._print(f"{error}: {METRICS_FILE} and the curves are put there at the next checkpoint")

    def _put(self) -> None:
        """Put the files to the object store, if the training lies on one."""
        if self._own is None:
            return
        if self._writer is not None:
            self._writer.flush()
        for file in (self._folder / METRICS_FILE, *(self._folder / _CURVES).glob("*")):
            if file.is_file():
                put_file(file, self._place / str(file.relative_to(self._folder)))

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
            return
        print(text, file=self._stream, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._writer is not None:
            self._writer.close()
        if self._own is not None:
            with self._own:
                if error is None:
                    self._put()
                else:
                    self._try_to_put()
