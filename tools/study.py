"""The study behind the embedded model: what each ingredient of its training is worth, by paired tests over seeds.

    python -m tools.study --training-set SET --development DEV1 --development DEV2 --output STUDY
    python -m tools.study --output STUDY --report

Runs that are done are skipped, so the same command goes on where it was stopped; two processes may share the work by
different seeds.

Legend: K slots of a text, H hidden size.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import yaml
from pydantic import Field, PositiveInt

from diffretriever.evaluation.formats.tables import markdown_table
from diffretriever.evaluation.statistics import holm, paired_p
from diffretriever.files import whole_folder
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneRetriever, MaskedRetriever
from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.training import Recipe
from tools import ROOT

if TYPE_CHECKING:
    from diffretriever.encoders.base import BackboneEncoder
    from diffretriever.representations import Representations
    from diffretriever.training.data.training_set import TrainingSet
    from diffretriever.training.validation import Validator

RESULT_FILE = "result.json"
_TEXTS_COMPARED = 200
"""Texts whose slots are compared with each other."""
_MODES = ("dense", "sparse", "hybrid")


class Study(JobConfig):
    """Train and measure the arms of a study, each with several seeds; or report on what is there."""

    arms_file: Path = ROOT / "tools" / "study.yaml"
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


class Arm(Model):
    """What is trained, and how; merged with the study's base."""

    about: str
    """For the table."""
    against: str | None = None
    """Arm that it differs from in one thing."""
    trained: bool = True
    """False: measured as it starts."""
    retriever: dict[str, Any] = Field(default_factory=dict)
    """Fields of the retriever; null takes one of the base's away."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Fields of the recipe."""
    measured: tuple[Budget, ...] = ()
    """Budgets to measure at; none: the retriever's own."""


class Measured(Model):
    """What one run gave."""

    arm: str
    seed: int
    steps: int
    trainable: int
    seconds: float
    """Of the training."""
    threads: PositiveInt
    curve: list[dict[str, float]]
    """Figures of every step."""
    values: dict[str, dict[str, float]]
    """`COLLECTION BUDGET MODE` → query id → nDCG@10."""
    slot_cosines: dict[str, tuple[float, float]]
    """Budget → mean cosine between different slots of a text, of queries and of passages."""


def main(config: Study) -> None:
    """Run or report."""
    described = yaml.safe_load(config.arms_file.read_text("utf-8"))
    arms = {name: Arm.model_validate(fields) for name, fields in described["arms"].items()}
    if config.report:
        print(report(arms, read_results(config.output)))
        return
    _run(config, arms, described["base"])


def _run(config: Study, arms: dict[str, Arm], base: dict[str, Any]) -> None:
    import torch

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


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` put into it; null takes a field away."""
    both = {name: value for name, value in base.items() if name not in change}
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            both[name] = merged(base[name], value)
        elif value is not None:
            both[name] = value
    return both


def run_arm(
    name: str,
    arm: Arm,
    base: dict[str, Any],
    seed: int,
    data: TrainingSet,
    validators: dict[str, Validator],
    target: Path,
) -> Measured:
    """Train and measure one arm with one seed; the folder `target` appears when all of it is done.

    Args:
        name: the arm's.
        arm: what it changes.
        base: the study's base.
        seed: of the training.
        data: what to train on.
        validators: what to measure on, by collection.
        target: folder of the run.

    Raises:
        ValueError: the arm describes no retriever or recipe.
    """
    import torch

    from diffretriever.encoders import load_encoder
    from diffretriever.training.gather import Workers
    from diffretriever.training.session import describe_training, open_session

    retriever = RETRIEVER_ADAPTER.validate_python(merged(base["retriever"], arm.retriever))
    assert isinstance(retriever, BackboneRetriever), "only these are trained"
    recipe = Recipe.model_validate(merged(base["recipe"], arm.recipe) | {"seed": seed})
    workers = Workers(0, 1)
    started = time.perf_counter()
    with whole_folder(target) as folder:
        session = open_session(data, describe_training(retriever, recipe, data, 1, "cpu"), "cpu", workers)
        curve: list[dict[str, float]] = []
        encoder = session.encoder
        if arm.trained:
            for metrics in session.trainer.run():
                curve.append(asdict(metrics))
                if metrics.step % 25 == 0:
                    print(f"{name} {seed}: step {metrics.step}, loss {metrics.loss:.3f}", flush=True)
            session.save_adapter(folder / "adapter")
        else:
            encoder = cast("BackboneEncoder", load_encoder(retriever, "cpu"))
        seconds = time.perf_counter() - started
        measured = _measured(encoder, retriever, arm, validators)
        result = Measured(
            arm=name,
            seed=seed,
            steps=len(curve),
            trainable=session.manifest.trainable or 0,
            seconds=seconds,
            threads=torch.get_num_threads(),
            curve=curve,
            values=measured[0],
            slot_cosines=measured[1],
        )
        (folder / RESULT_FILE).write_text(result.model_dump_json() + "\n", "utf-8")
    return result


def _measured(
    encoder: BackboneEncoder, retriever: BackboneRetriever, arm: Arm, validators: dict[str, Validator]
) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
    from diffretriever.training.validation import MEASURE

    values: dict[str, dict[str, float]] = {}
    cosines: dict[str, tuple[float, float]] = {}
    for budget, at_budget in _at_budgets(encoder, retriever, arm.measured):
        for collection, validator in validators.items():
            for mode, result in validator.results(at_budget).items():
                values[f"{collection} {budget} {mode}"] = result.per_query[MEASURE]
        first = next(iter(validators.values()))
        queries = at_budget.encode_queries([query.text for query in first.queries[:_TEXTS_COMPARED]])
        texts = first.passages[:_TEXTS_COMPARED]
        passages = at_budget.encode_passages([p.title for p in texts], [p.text for p in texts])
        cosines[budget] = (_mean_cosine(queries), _mean_cosine(passages))
    return values, cosines


def _at_budgets(
    encoder: BackboneEncoder, retriever: BackboneRetriever, budgets: Sequence[Budget]
) -> list[tuple[str, BackboneEncoder]]:
    if not isinstance(retriever, MaskedRetriever):
        return [("single", encoder)]
    configs = [retriever.model_copy(update={"budget": budget}) for budget in budgets or [retriever.budget]]
    kind, vocabulary = type(encoder), encoder.backbone.vocabulary
    return [(str(c.budget), kind(c, encoder.backbone, kind.make_preparer(c, vocabulary))) for c in configs]


def _mean_cosine(found: Representations) -> float:
    """Return the mean cosine between two different vectors of the same text; 1 where texts have one each."""
    cosines: list[float] = []
    for start, end in zip(found.offsets[:-1], found.offsets[1:], strict=True):
        vectors_KH = found.vectors_MH[start:end].astype(np.float32)
        others = len(vectors_KH) * (len(vectors_KH) - 1)
        if others:
            cosines.append(float(((vectors_KH @ vectors_KH.T).sum() - len(vectors_KH)) / others))
    return float(np.mean(cosines)) if cosines else 1.0


def read_results(output: Path) -> list[Measured]:
    """Return every finished run in a study's folder."""
    files = sorted(output.glob(f"*/{RESULT_FILE}"))
    return [Measured.model_validate(json.loads(file.read_text("utf-8"))) for file in files]


def report(arms: dict[str, Arm], results: list[Measured]) -> str:
    """Return Markdown: nDCG@10 of every arm, then every change with its paired test."""
    found = {name: [result for result in results if result.arm == name] for name in arms}
    done = {name: runs for name, runs in found.items() if runs}
    collections = sorted({key.split()[0] for runs in done.values() for run in runs for key in run.values})
    return f"{_figures(arms, done, collections)}\n\n{_changes(arms, done, collections)}"


def _figures(arms: dict[str, Arm], done: dict[str, list[Measured]], collections: list[str]) -> str:
    rows: list[list[str]] = []
    for name, runs in done.items():
        for budget in _budgets(runs[0]):
            figures = [" / ".join(_figure(runs, c, budget, mode) for mode in _MODES) for c in collections]
            pairs = [run.slot_cosines[budget] for run in runs]
            cosines = " / ".join(f"{statistics.mean(values):.2f}" for values in zip(*pairs, strict=True))
            rows.append([name, arms[name].about, budget, str(len(runs)), *figures, cosines])
    titles = [f"{collection} D / S / H" for collection in collections]
    return markdown_table(rows, ["arm", "what it is", "budget", "seeds", *titles, "slot cosine q / p"])


def _figure(runs: list[Measured], collection: str, budget: str, mode: str) -> str:
    key = f"{collection} {budget} {mode}"
    means = [statistics.mean(run.values[key].values()) for run in runs if key in run.values]
    if not means:
        return "-"
    spread = f" ±{(max(means) - min(means)) / 2:.3f}" if len(means) > 1 else ""
    return f"{statistics.mean(means):.3f}{spread}"


def _changes(arms: dict[str, Arm], done: dict[str, list[Measured]], collections: list[str]) -> str:
    """Differences of queries' means over the seeds that both arms have; p values corrected over the whole table."""
    rows: list[list[str]] = []
    p_values: list[float] = []
    for name, runs in done.items():
        against = done.get(arms[name].against or "")
        if not against:
            continue
        seeds = {run.seed for run in runs} & {run.seed for run in against}
        for budgets in _compared(runs[0], against[0]):
            for mode in _MODES:
                pair = zip((runs, against), budgets, strict=True)
                ours, theirs = (_queries(each, seeds, collections, budget, mode) for each, budget in pair)
                if not ours or ours.keys() != theirs.keys():
                    continue
                difference = statistics.mean(ours.values()) - statistics.mean(theirs.values())
                p_values.append(paired_p(ours, theirs))
                place = " / ".join(dict.fromkeys(budgets))
                rows.append([name, arms[name].against or "", place, mode, str(len(seeds)), f"{difference:+.4f}"])
    cells = [[*row, "< 0.001" if p < 0.001 else f"{p:.3f}"] for row, p in zip(rows, holm(p_values), strict=True)]
    return markdown_table(cells, ["arm", "against", "budget", "score", "seeds", "difference", "p (Holm)"])


def _compared(ours: Measured, theirs: Measured) -> list[tuple[str, str]]:
    """Return the budgets that both were measured at, or, where there are none, the first of each."""
    shared = [budget for budget in _budgets(ours) if budget in _budgets(theirs)]
    return [(budget, budget) for budget in shared] or [(_budgets(ours)[0], _budgets(theirs)[0])]


def _queries(
    runs: Iterable[Measured], seeds: set[int], collections: list[str], budget: str, mode: str
) -> dict[str, float]:
    """Return each query's mean over the seeds, all collections together."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run.seed not in seeds:
            continue
        for collection in collections:
            for query, value in run.values.get(f"{collection} {budget} {mode}", {}).items():
                values.setdefault(f"{collection} {query}", []).append(value)
    return {query: float(np.mean(each)) for query, each in values.items()}


def _budgets(run: Measured) -> list[str]:
    return list(run.slot_cosines)


if __name__ == "__main__":
    main(Study.from_command_line())
