"""Fine-tune a retriever with LoRA on Ray Train."""

from __future__ import annotations

from pathlib import Path

from _entry import absolute_place, run

from diffretriever.schemas.base import counted
from diffretriever.schemas.places import plain_place
from diffretriever.schemas.training import TrainingManifest, TrainJob


def main(config: TrainJob) -> None:
    """Run or resume training, and print the adapter's path."""
    from diffretriever.pipelines.train import train

    places: dict[str, str] = {}
    # Workers run in another directory.
    for name, place in (("train", config.train), ("validation", config.validation)):
        if place is not None and Path(plain_place(place)).exists():
            places[name] = absolute_place(place, f"--{name}")
    print(describe(train(config.model_copy(update=places)), config))


def describe(manifest: TrainingManifest, job: TrainJob) -> str:
    """Return a summary of the training, and how to use the adapter."""
    return (
        f"{job.output}/adapter: {manifest.trainable:,} parameters trained in {counted(manifest.step, 'steps')} on "
        f"{counted(manifest.examples, 'queries')}, recipe {job.recipe_title}\n"
        f"  use it with --retriever {job.output}/retriever.yaml"
    )


if __name__ == "__main__":
    run(TrainJob, main)
