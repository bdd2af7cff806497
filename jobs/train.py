"""Fine-tune a retriever with LoRA on Ray Train."""

from __future__ import annotations

from pathlib import Path

from _entry import absolute_path, run

from diffretriever.schemas.base import counted
from diffretriever.schemas.locations import plain_location
from diffretriever.schemas.training import TrainingManifest, TrainJob


def main(config: TrainJob) -> None:
    """Run or resume training, and print the adapter's path."""
    from diffretriever.pipelines.train import train

    inputs = {"train": config.train, "validation": config.validation}
    # Other inputs are names.
    files = {name: path for name, path in inputs.items() if path is not None and Path(plain_location(path)).exists()}
    absolute = {name: absolute_path(path, f"--{name}") for name, path in files.items()}
    print(describe(train(config.model_copy(update=absolute)), config))


def describe(manifest: TrainingManifest, job: TrainJob) -> str:
    """Return a summary of the training, and how to use the adapter."""
    return (
        f"{job.output}/adapter: {manifest.trainable:,} parameters trained in {counted(manifest.step, 'steps')} on "
        f"{counted(manifest.examples, 'queries')}, recipe {job.recipe_title}\n"
        f"  use it with --retriever {job.output}/retriever.yaml"
    )


if __name__ == "__main__":
    run(TrainJob, main)
