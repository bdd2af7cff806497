"""Training on Ray Train: workers, checkpoints, deaths and resuming."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.train_worker import Inbox, describe, work_on_ray
from diffretriever.pipelines.training_data import prepare_training
from diffretriever.presets import load_retriever
from diffretriever.training.journal import Journal
from diffretriever.training.planned import check_trainable
from diffretriever.training.run_folder import RunFolder
from diffretriever.training.training_set import MANIFEST_FILE
from schemas.jobs import RayConfig
from schemas.training import TrainJob
from schemas.training_data import PrepareTrainingJob
from schemas.training_manifest import TrainingManifest

_PUMP_SECONDS = 0.5
# Others wait this long for the worker that validates.
_PATIENCE_SECONDS = 7200


def train(job: TrainJob) -> TrainingManifest:
    """Run a training job, or the rest of one, in the Ray session at hand or in one of its own.

    Workers that die are replaced, and training goes on from the last checkpoint; so does the same job run again after
    this process died.

    Raises:
        ValueError: the retriever, the data or the folder does not fit, or the loss stopped being a number.
    """
    folder = RunFolder(job.output)
    retriever = load_retriever(job.retriever, job.backbone, job.budget, job.adapter)
    retriever = folder.with_dtype(check_trainable(retriever, job.recipe))
    with ray_session(RayConfig(ray_address=job.ray_address)):
        job = job.model_copy(update={"train": str(_prepared(job))})
        gpus = job.gpus_per_worker if job.gpus_per_worker is not None else float(_cluster_has("GPU") > 0)
        _check_room(job, gpus)
        task = describe.options(num_cpus=0, num_gpus=gpus)
        manifest = folder.begin(_result_of(task.remote(job, retriever, "cuda" if gpus else "cpu")), job)
        if not folder.finished:
            _fit(job, manifest, folder, gpus)
    return folder.result()


def _prepared(job: TrainJob) -> Path:
    """The training set's folder: the one given, or one made from what was given."""
    given = Path(job.train)
    if (given / MANIFEST_FILE).is_file():
        return given
    made = job.output / "training-set"
    prepare_training(PrepareTrainingJob(source=(job.train,), output=made))
    return made


def _fit(job: TrainJob, manifest: TrainingManifest, folder: RunFolder, gpus: float) -> None:
    inbox = Inbox.remote()  # type: ignore[attr-defined] # Ray's decorator is not typed
    trainer = TorchTrainer(
        work_on_ray,
        train_loop_config={"job": job, "manifest": manifest, "inbox": inbox},
        scaling_config=ScalingConfig(
            num_workers=job.workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": job.cpus_per_worker} | ({"GPU": gpus} if gpus else {}),
        ),
        run_config=RunConfig(
            name=folder.checkpoints.name,
            storage_path=str(folder.path),
            failure_config=FailureConfig(max_failures=job.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=job.checkpoints_kept),
        ),
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=_PATIENCE_SECONDS),
    )
    label = f"{manifest.retriever.method} {job.backbone or job.retriever}"
    with Journal(folder.path, label, manifest.total_steps) as journal, _pumped(inbox, journal):
        try:
            result = trainer.fit()
        except TrainingFailedError:
            mistake = ray.get(inbox.mistake.remote())
            if mistake is None:
                raise
            raise ValueError(mistake) from None
    assert result.checkpoint is not None, "the last step reports a checkpoint"
    with result.checkpoint.as_directory() as saved:
        folder.finish(Path(saved))


@contextmanager
def _pumped(inbox: Any, journal: Journal) -> Iterator[None]:
    """Carry records from the workers to the journal as long as the block runs, and what is left at its end."""
    ended = threading.Event()

    def pump() -> None:
        while not ended.wait(_PUMP_SECONDS):
            for record in ray.get(inbox.take.remote()):
                journal.add(record)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for record in ray.get(inbox.take.remote()):
            journal.add(record)


def _result_of(reference: Any) -> TrainingManifest:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise ValueError(str(error.cause)) from None
        raise


def _check_room(job: TrainJob, gpus: float) -> None:
    """Raise ValueError where the cluster can never hold the workers: Ray would wait for ever."""
    cpus = job.workers * job.cpus_per_worker
    if job.autoscale or (cpus <= _cluster_has("CPU") and job.workers * gpus <= _cluster_has("GPU")):
        return
    raise ValueError(
        f"no room for {job.workers} workers of {job.cpus_per_worker:g} CPUs and {gpus:g} GPUs: the cluster has "
        f"{_cluster_has('CPU'):g} CPUs and {_cluster_has('GPU'):g} GPUs. Ask for less with --workers, "
        "--cpus-per-worker or --gpus-per-worker, or say --autoscale if the cluster adds machines by itself."
    )


def _cluster_has(name: str) -> float:
    return float(ray.cluster_resources().get(name, 0.0))
