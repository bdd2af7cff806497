"""What each worker of a training does, whoever started it: take up a checkpoint, train, validate, leave checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from diffretriever.training.batches import TrainingData
from diffretriever.training.gather import Workers
from diffretriever.training.saving import ADAPTER
from diffretriever.training.session import Session, open_session
from schemas.training import TrainJob
from schemas.training_manifest import TrainingManifest

Record = dict[str, float]
Tell = Callable[[Record], None]
Keep = Callable[[int, Path], None]
"""Takes a step and a folder with this worker's files of its checkpoint, which may be none."""


def work(
    job: TrainJob,
    manifest: TrainingManifest,
    data: TrainingData,
    *,
    device: str,
    workers: Workers,
    resume: Path | None,
    tell: Tell,
    keep: Keep,
) -> None:
    """Train to the end, on one worker of several.

    Args:
        job: as the user gave it.
        manifest: of this training.
        data: the training set.
        device: of this worker.
        workers: its place.
        resume: checkpoint to go on from, whose files are all there; None to begin.
        tell: called on the first worker with the figures of each step and validation.
        keep: called on every worker at each checkpoint, the last one at the end.
    """
    torch.set_num_threads(job.threads_per_worker)
    session = open_session(data, manifest, device, workers)
    if resume is not None:
        session.trainer.load(resume)
    validate = _validation(job, session, tell) if workers.rank == 0 else _nothing
    if session.trainer.step == 0:
        validate()
    for metrics in session.trainer.run():
        is_last = metrics.step == manifest.total_steps
        if workers.rank == 0:
            tell(asdict(metrics))
        if is_last or (job.validate_every and metrics.step % job.validate_every == 0):
            validate()
        if is_last or metrics.step % job.checkpoint_every == 0:
            _save(session, workers, keep)


def _validation(job: TrainJob, session: Session, tell: Tell) -> Callable[[], None]:
    if job.validation is None:
        return _nothing
    from diffretriever.training.validation import Validator

    validator = Validator(job.validation, job.validation_split)

    def validate() -> None:
        measured = validator.measure(session.encoder)
        tell({"step": session.trainer.step} | {f"validation/{mode}": value for mode, value in measured.items()})

    return validate


def _nothing() -> None:
    return


def _save(session: Session, workers: Workers, keep: Keep) -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as place:
        folder = Path(place)
        session.trainer.save(folder)
        if workers.rank == 0:
            session.save_adapter(folder / ADAPTER)
        keep(session.trainer.step, folder)
