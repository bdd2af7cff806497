"""One run of the study: an arm and a seed to an adapter, its curve, and every query's nDCG@10."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import Field, PositiveInt

from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.representations import Representations
from diffretriever.files import whole_folder
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.gather import Workers
from diffretriever.training.session import describe_training, open_session
from diffretriever.training.validation import MEASURE, Validator
from schemas.base import Model
from schemas.budget import Budget
from schemas.retriever import RETRIEVER_ADAPTER, BackboneRetriever, MaskedRetriever
from schemas.training import Recipe

RESULT_FILE = "result.json"
_TEXTS_COMPARED = 200


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

    Raises:
        ValueError: the arm describes no retriever or recipe.
    """
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
