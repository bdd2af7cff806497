"""The output folder of one training, local or on an object store: manifest, metrics, checkpoints, adapter.

Metrics are printed, and written to TensorBoard and `metrics.jsonl`. For an object store, which cannot append to files,
they are written locally and uploaded at every checkpoint and at the end.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

import yaml
from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

from diffretriever.core.files import (
    AnyLocation,
    is_file,
    put_file,
    put_folder,
    read_bytes,
    read_model,
    whole_folder,
    write_text,
)
from diffretriever.core.ledger import refuse_another
from diffretriever.schemas.base import counted
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.schemas.training import MANIFEST_FILE, TrainingManifest, TrainJob
from diffretriever.training.adapters import ADAPTER
from diffretriever.training.loop import Record

METRICS_FILE = "metrics.jsonl"
_CURVES = "tensorboard"
_RESTART = "restore the file from a copy, or train again in another --output"
_LOG_EVERY_SECONDS = 10.0


class RunFolder:
    """The output folder of a training.

    Attributes:
        location: path or URI of the folder.
        checkpoints: folder of Ray's checkpoints.
        adapter: folder of the trained adapter, which exists once the training has finished.
    """

    def __init__(self, location: AnyLocation) -> None:
        path = parse_location(location)
        self.location = path.absolute() if isinstance(path, Path) else path
        self.checkpoints = self.location / "checkpoints"
        self.adapter = self.location / ADAPTER
        self._manifest = self.location / "run.json"

    @property
    def has_started(self) -> bool:
        """Whether a training has started in this folder."""
        return is_file(self._manifest)

    @property
    def finished(self) -> bool:
        """Whether the training has finished."""
        return is_file(self.adapter / MANIFEST_FILE)

    def start(self, manifest: TrainingManifest, job: TrainJob) -> None:
        """Write the manifest, or check that the folder already belongs to this training.

        Raises:
            ValueError: The folder belongs to another training; the message names the fields that differ.
        """
        if self.has_started:
            existing = read_model(self._manifest, TrainingManifest, _RESTART)
            refuse_another(self.location, "another training", existing.identity, manifest.identity)
            return
        write_text(self.location / "train.yaml", job.to_yaml())
        write_text(self._manifest, manifest.model_dump_json(indent=2) + "\n")

    def finish(self, checkpoint: Path) -> TrainingManifest:
        """Copy the adapter of the last checkpoint (a local folder), and write a `retriever.yaml` that uses it."""
        trained = checkpoint / ADAPTER
        manifest = read_model(trained / MANIFEST_FILE, TrainingManifest, _RESTART)
        retriever = manifest.retriever.model_dump(mode="json", exclude_defaults=True) | {
            "method": manifest.retriever.method
        }
        retriever["backbone"]["adapter"] = str(self.adapter)
        write_text(self.location / "retriever.yaml", yaml.safe_dump(retriever, sort_keys=False))
        # Last, because `finished` checks it.
        if isinstance(self.adapter, StorePath):
            put_folder(trained, self.adapter, last=MANIFEST_FILE)
        else:
            with whole_folder(self.adapter) as folder:
                shutil.copytree(trained, folder, dirs_exist_ok=True)
        return manifest

    def result(self) -> TrainingManifest:
        """Return the manifest of the finished training."""
        return read_model(self.adapter / MANIFEST_FILE, TrainingManifest, _RESTART)


class MetricsLog:
    """Writes metrics in step order. After a resume, later lines override earlier ones of the same step."""

    def __init__(self, location: AnyLocation, label: str, total_steps: int, upload_every: int) -> None:
        """Prefix printed lines by `label`; upload files to an object store every `upload_every` steps."""
        self._location, self._label = parse_location(location), label
        self._total, self._upload_every = total_steps, upload_every
        self._logged = 0.0
        self._writer: SummaryWriter | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path()

    def __enter__(self) -> MetricsLog:
        if isinstance(self._location, StorePath):
            self._temporary = tempfile.TemporaryDirectory(prefix="journal-")
            self._folder = Path(self._temporary.name)
            if is_file(self._location / METRICS_FILE):
                (self._folder / METRICS_FILE).write_bytes(read_bytes(self._location / METRICS_FILE))
        else:
            self._folder = self._location
            self._folder.mkdir(parents=True, exist_ok=True)
        self._print(counted(self._total, "steps"))
        return self

    def add(self, record: Record) -> None:
        """Write a record."""
        step = int(record["step"])
        with (self._folder / METRICS_FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        if self._writer is None:
            # Purge points of later steps by a killed job. File names by default contain only node and second, which two
            # attempts may share.
            suffix = f".{uuid.uuid4().hex}"
            self._writer = SummaryWriter(str(self._folder / _CURVES), purge_step=step, filename_suffix=suffix)
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)
        self._show(step, record)
        if step % self._upload_every == 0:
            self._try_to_upload()

    def _show(self, step: int, record: Record) -> None:
        if "loss" not in record:
            measured = ", ".join(f"{name} {value:.4f}" for name, value in record.items() if name != "step")
            self._print(f"step {step:,}: {measured}")
        elif time.monotonic() - self._logged >= _LOG_EVERY_SECONDS or step == self._total:
            self._logged = time.monotonic()
            self._print(
                f"{step:,}/{self._total:,} ({100 * step // self._total} %), loss {record['loss']:.4f}, "
                f"accuracy {record['accuracy']:.3f}, {record['tokens_per_second']:,.0f} tokens/s, "
                f"{100 * record['utilisation']:.0f} % of the device's FLOPs"
            )

    def _try_to_upload(self) -> None:
        try:
            self._upload()
        except (ValueError, OSError) as error:
            self._print(f"{error}: {METRICS_FILE} and the curves are uploaded at the next checkpoint")

    def _upload(self) -> None:
        if self._temporary is None:
            return
        if self._writer is not None:
            self._writer.flush()
        for file in (self._folder / METRICS_FILE, *(self._folder / _CURVES).glob("*")):
            if file.is_file():
                put_file(file, self._location / str(file.relative_to(self._folder)))

    def _print(self, text: str) -> None:
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._temporary is not None:
            with self._temporary:
                if kind is None:
                    self._upload()
                else:
                    self._try_to_upload()
