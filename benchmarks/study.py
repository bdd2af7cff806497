"""The study behind the embedded model: what each ingredient of its training is worth, by paired tests over seeds.

    python benchmarks/study.py --training-set SET --development DEV1 --development DEV2 --output STUDY
    python benchmarks/study.py --output STUDY --report

Runs that are done are skipped, so the same command goes on where it was stopped; two processes may share the work by
different seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import PositiveInt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from schemas.settings import JobConfig  # noqa: E402  (found through the path above)


class Study(JobConfig):
    """Train and measure the arms of a study, each with several seeds; or report on what is there."""

    arms_file: Path = ROOT / "benchmarks" / "study.yaml"
    """Base and arms."""
    training_set: Path | None = None
    """As prepare_training.py makes it."""
    development: tuple[str, ...] = ()
    """Collections to measure on, as COLLECTION or COLLECTION:SPLIT; repeat the flag. Those that the model is to be
    judged by must not be among them."""
    arms: tuple[str, ...] = ()
    """Arms to run; repeat the flag. Default: all, in the file's order."""
    seeds: tuple[PositiveInt, ...] = (1, 2, 3)
    """Seeds, one after the other, so that all arms have one before any has two."""
    threads: PositiveInt = 1
    """CPU threads."""
    output: Path
    """Folder of the runs."""
    report: bool = False
    """Print the tables of what is there, as Markdown, and run nothing."""


def main(config: Study) -> None:
    """Run or report."""
    from benchmarks._study_report import report
    from benchmarks._study_run import Arm, read_results

    described = yaml.safe_load(config.arms_file.read_text("utf-8"))
    arms = {name: Arm.model_validate(fields) for name, fields in described["arms"].items()}
    if config.report:
        print(report(arms, read_results(config.output)))
        return
    _run(config, arms, described["base"])


def _run(config: Study, arms: dict[str, Any], base: dict[str, Any]) -> None:
    import torch

    from benchmarks._study_run import run_arm
    from diffretriever.training.data.training_set import TrainingSet
    from diffretriever.training.validation import Validator

    if config.training_set is None or not config.development:
        raise SystemExit("--training-set and --development are needed to run a study")
    if unknown := set(config.arms) - arms.keys():
        raise SystemExit(f"--arms {min(unknown)}: {config.arms_file} has {', '.join(arms)}")
    torch.set_num_threads(config.threads)
    data = TrainingSet.open(config.training_set)
    places = [place.partition(":") for place in config.development]
    validators = {Path(where).name: Validator(where, split or "test") for where, _, split in places}
    config.output.mkdir(parents=True, exist_ok=True)
    for seed in config.seeds:
        for name in config.arms or arms:
            target = config.output / f"{name}-{seed}"
            # What is not trained is the same whatever the seed.
            if target.is_dir() or not (arms[name].trained or seed == config.seeds[0]):
                continue
            result = run_arm(name, arms[name], base, seed, data, validators, target)
            print(f"{name} {seed}: {result.steps} steps in {result.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(Study.from_command_line())
