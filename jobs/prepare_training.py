"""Turn training files into a training set on Ray."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.training_data import PrepareTrainingJob, TrainingCounts, TrainingSetManifest


def main(job: PrepareTrainingJob) -> None:
    """Prepare and print the counts of records."""
    from diffretriever.pipelines.training_data import prepare_training

    print(describe(job, prepare_training(job)))


def describe(job: PrepareTrainingJob, manifest: TrainingSetManifest) -> str:
    """Return the result as text, including everything that was skipped."""
    lines = [f"{job.output}: {counted(manifest.counts.examples, 'examples')}"]
    lines += [f"  {source.name}: {_counts(source.counts)}" for source in manifest.sources]
    return "\n".join([*lines, f"  digest {manifest.digest}"])


def _counts(counts: TrainingCounts) -> str:
    named = {name.replace("_", " "): number for name, number in counts if number}
    return ", ".join(f"{number:,} {name}" for name, number in named.items())


if __name__ == "__main__":
    run(PrepareTrainingJob, main)
