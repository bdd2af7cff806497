"""What Ray runs of a training outside of the driver. What is heavy to import is imported where it is used."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray

from schemas.retriever import BackboneRetriever
from schemas.training import TrainJob
from schemas.training_manifest import TrainingManifest

Record = dict[str, float]


@ray.remote(num_cpus=0)
class Inbox:
    """Where workers leave what the driver is to show, and the mistake that ends the training."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._mistake: str | None = None

    def put(self, record: Record) -> None:
        """Leave a record."""
        self._records.append(record)

    def take(self) -> list[Record]:
        """Take all that lie here."""
        taken, self._records = self._records, []
        return taken

    def report_mistake(self, message: str) -> None:
        """Leave the message of an error that a restart will not mend."""
        self._mistake = self._mistake or message

    def mistake(self) -> str | None:
        """Return that message."""
        return self._mistake


@ray.remote
def describe(job: TrainJob, retriever: BackboneRetriever, device: str) -> TrainingManifest:
    """Find out, on a machine like the workers', which training this is; raises `ValueError` if it cannot begin."""
    from diffretriever.training.planned import describe_training
    from diffretriever.training.training_set import TrainingSet

    return describe_training(retriever, job.recipe, TrainingSet.open(Path(job.train)), job.workers, device)


def work_on_ray(config: dict[str, Any]) -> None:
    """Train on one of Ray Train's workers, from its latest checkpoint on.

    Args:
        config: `job`, `manifest` and `inbox`.
    """
    import ray.train
    import ray.train.torch

    from diffretriever.training.gather import Workers
    from diffretriever.training.training_set import TrainingSet
    from diffretriever.training.worker import work

    job, inbox = config["job"], config["inbox"]
    # A mistake is the same after every restart.
    if mistake := ray.get(inbox.mistake.remote()):
        raise ValueError(mistake)
    context = ray.train.get_context()
    checkpoint = ray.train.get_checkpoint()
    try:
        with checkpoint.as_directory() if checkpoint else nullcontext() as resume:
            work(
                job,
                config["manifest"],
                TrainingSet.open(Path(job.train)),
                device=str(ray.train.torch.get_device()),
                workers=Workers(context.get_world_rank(), context.get_world_size()),
                resume=Path(resume) if resume else None,
                tell=lambda record: ray.get(inbox.put.remote(record)),
                keep=_keep,
            )
    except ValueError as error:
        ray.get(inbox.report_mistake.remote(str(error)))
        raise


def _keep(step: int, folder: Path) -> None:
    import ray.train

    written = ray.train.Checkpoint.from_directory(folder) if any(folder.iterdir()) else None
    ray.train.report({"step": step}, checkpoint=written)
