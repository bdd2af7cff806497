"""Training on Ray Train: workers, checkpoints, failures and resuming."""

from __future__ import annotations

import socket
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from diffretriever.collections import open_collection
from diffretriever.core.files import filesystem_of, is_file
from diffretriever.core.full_disk import full_disk
from diffretriever.encoders.words import in_language
from diffretriever.pipelines.cluster import Share, on_this_node, ray_session, result_of, size_actors
from diffretriever.pipelines.training_data import prepare_training
from diffretriever.pipelines.validation import Validator
from diffretriever.presets import load_retriever
from diffretriever.protocols import under_protocol
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import TrainingManifest, TrainJob
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.adapters import ADAPTER
from diffretriever.training.data.training_set import MANIFEST_FILE, TrainingSet
from diffretriever.training.gather import Workers
from diffretriever.training.loop import Record
from diffretriever.training.run_folder import MetricsLog, RunFolder
from diffretriever.training.session import Session, check_trainable, describe_training, open_session

_PUMP_SECONDS = 0.5
# Others wait this long for the worker that validates.
_PATIENCE_SECONDS = 7200
# Failures of workers after which training resumes from the last checkpoint.
_MAX_FAILURES = 3
# Examples that show the language of the texts.
_SAMPLED_ROWS = 300
# As in the authors' training.
_CHECKPOINTS_KEPT = 3


def train(job: TrainJob) -> TrainingManifest:
    """Run or resume a training job on Ray. Failed workers restart from the last checkpoint.

    Raises:
        ValueError: Retriever, data or folder do not fit the job, or the loss is not finite.
    """
    folder = RunFolder(job.output)
    retriever = load_retriever(job.retriever, job.backbone, job.budget, job.adapter)
    if job.protocol is not None:
        retriever = under_protocol(retriever, job.protocol, "fine-tuned").config
    retriever = check_trainable(retriever, job.hyperparameters)
    with ray_session():
        job = job.model_copy(update={"train": str(_prepared(job))})
        _, share = size_actors("worker", job.workers, job.cpus_per_worker, job.gpus_per_worker, autoscale=job.autoscale)
        task = _describe.options(num_cpus=share.cpus, num_gpus=share.gpus)
        manifest = result_of(task.remote(job, retriever, "cuda" if share.gpus else "cpu"))
        folder.start(manifest, job)
        if not folder.finished:
            _fit(job, manifest, folder, share)
    return folder.result()


def _prepared(job: TrainJob) -> Path | StorePath:
    folder = parse_location(job.train)
    if is_file(folder / MANIFEST_FILE):
        return folder
    folder = job.output / "training-set"
    prepare_training(PrepareTrainingJob(source=(job.train,), output=folder))
    return folder


@ray.remote
def _describe(job: TrainJob, retriever: BackboneRetriever, device: str) -> TrainingManifest:
    if job.validation is not None:
        open_collection(job.validation)
    data = _open_training_set(job)
    rows = range(min(len(data), _SAMPLED_ROWS))
    texts = (passage.text for row in rows for passage in data.example(row).positives)
    retriever = in_language(retriever, job.language, texts)
    return describe_training(retriever, job.hyperparameters, data, job.workers, device)


def _open_training_set(job: TrainJob) -> TrainingSet:
    if not is_file(parse_location(job.train) / MANIFEST_FILE):
        raise _missing_here("train", job.train)
    return TrainingSet.open(job.train)


def _missing_here(flag: str, location: object) -> ValueError:
    return ValueError(
        f"--{flag} {location} is missing on {socket.gethostname()}, where a worker trains: pass the URI of an object "
        "store, such as s3://bucket/folder, or a folder that all nodes share"
    )


def _fit(job: TrainJob, manifest: TrainingManifest, folder: RunFolder, share: Share) -> None:
    filesystem, path = filesystem_of(folder.location)
    # On the node of this process, as Ray has its own controller: nodes of workers come and go.
    inbox = _Inbox.options(**on_this_node(0)).remote()  # type: ignore[attr-defined] # Ray's is not typed
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job, "manifest": manifest, "inbox": inbox},
        scaling_config=ScalingConfig(
            num_workers=job.workers,
            use_gpu=share.gpus > 0,
            resources_per_worker={"CPU": share.cpus} | ({"GPU": share.gpus} if share.gpus else {}),
        ),
        run_config=RunConfig(
            name=folder.checkpoints.name,
            storage_path=path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=_MAX_FAILURES),
            checkpoint_config=CheckpointConfig(num_to_keep=_CHECKPOINTS_KEPT),
        ),
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo", timeout_s=_PATIENCE_SECONDS),
    )
    label = f"{manifest.retriever.method} {job.backbone or job.retriever}"
    ended = threading.Event()
    with (
        MetricsLog(folder.location, label, manifest.total_steps, job.checkpoint_every) as journal,
        ThreadPoolExecutor(1) as pool,
    ):
        pump = pool.submit(_pump, inbox, journal, ended)
        try:
            result = trainer.fit()
        except TrainingFailedError:
            reason, _ = ray.get(inbox.error.remote())
            if not reason:
                raise
            raise ValueError(reason) from None
        finally:
            ended.set()
        pump.result()
    assert result.checkpoint is not None, "the last step reports a checkpoint"
    with result.checkpoint.as_directory() as saved:
        folder.finish(Path(saved))


def _pump(inbox: Any, journal: MetricsLog, ended: threading.Event) -> None:
    is_last = False
    while not is_last:
        is_last = ended.wait(_PUMP_SECONDS)
        for record in ray.get(inbox.take.remote()):
            journal.add(record)


@ray.remote
class _Inbox:
    """Passes records and errors from workers to the driver."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._error, self._lasts = "", False

    def put(self, record: Record) -> None:
        """Add a record: training goes on, so an error has passed."""
        self._records.append(record)
        if not self._lasts:
            self._error = ""

    def take(self) -> list[Record]:
        """Take all records."""
        taken, self._records = self._records, []
        return taken

    def fail(self, message: str, lasts: bool) -> None:  # noqa: FBT001 (actors take what they are sent by position)
        """Report an error, and whether every restart would meet it again."""
        if not self._lasts:
            self._error, self._lasts = message, lasts

    def error(self) -> tuple[str, bool]:
        """Return the current error, or "", and whether it would recur after a restart."""
        return self._error, self._lasts


def _work(config: dict[str, Any]) -> None:
    """Train in one of Ray Train's workers, from its latest checkpoint; `config` has `job`, `manifest`, `inbox`."""
    job, inbox = config["job"], config["inbox"]
    message, lasts = ray.get(inbox.error.remote())
    if lasts:
        raise ValueError(message)
    try:
        _train(job, config["manifest"], inbox)
    except Exception as error:
        # A store or the hub may answer the next attempt, and a disk may have space again.
        may_pass = full_disk(error) is not None or isinstance(error.__cause__, OSError)
        if full_disk(error) is not None or isinstance(error, ValueError):
            ray.get(inbox.fail.remote(str(error), not may_pass))
        raise


def _train(job: TrainJob, manifest: TrainingManifest, inbox: Any) -> None:
    # Before weights are loaded: a checkpoint that only one node sees could not be put together.
    if not RunFolder(job.output).has_started:
        raise _missing_here("output", job.output)
    context = ray.train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size())
    torch.set_num_threads(max(1, int(job.cpus_per_worker)))
    session = open_session(_open_training_set(job), manifest, str(ray.train.torch.get_device()), workers)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            session.trainer.load(Path(folder))
    validator = Validator(job.validation) if job.validation is not None and workers.rank == 0 else None
    if session.trainer.step == 0:
        _validate(session, validator, inbox)
    for metrics in session.trainer.run():
        if workers.rank == 0:
            ray.get(inbox.put.remote(asdict(metrics)))
        if metrics.step == manifest.total_steps or metrics.step % job.checkpoint_every == 0:
            _validate(session, validator, inbox)
            _save(session, workers)


def _validate(session: Session, validator: Validator | None, inbox: Any) -> None:
    if validator is not None:
        measured = {f"validation/{mode}": value for mode, value in validator.measure(session.encoder).items()}
        ray.get(inbox.put.remote({"step": session.trainer.step} | measured))


def _save(session: Session, workers: Workers) -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as temporary:
        folder = Path(temporary)
        session.trainer.save(folder)
        if workers.rank == 0:
            session.save_adapter(folder / ADAPTER)
        # Not all workers have files of their own.
        written = ray.train.Checkpoint.from_directory(folder) if any(folder.iterdir()) else None
        ray.train.report({"step": session.trainer.step}, checkpoint=written)
