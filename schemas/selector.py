"""What chooses K_q: the artefact of a fitted selector and the job that fits one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.places import Place
from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.sweep import SweepMode

NonNegative = Annotated[float, Field(ge=0)]


class FittedFeature(Model):
    """One feature of a linear model, clipped to what was seen in training and then standardised."""

    name: str
    """As in `budgets/features.py`."""
    low: float
    """Smallest value in training."""
    high: float
    """Largest value in training."""
    centre: float
    """Mean in training."""
    scale: Annotated[float, Field(gt=0)]
    """Standard deviation in training."""


class LearnedSelectorArtefact(Model):
    """A fitted selector as a JSON file: a linear prediction of each budget's gain, and where it comes from."""

    format: Literal[1] = 1
    """Version of this file's layout."""
    kind: Literal["learned"] = "learned"
    fingerprint: str
    """Of the encoder, as queries depend on it: it must be the one that will encode."""
    retriever: str
    """What retrieved, for people to read."""
    collections: tuple[str, ...]
    """As collection/split: what it was fitted on."""
    mode: SweepMode
    """Score whose measure was predicted."""
    measure: str
    """As ir_measures writes it."""
    passage_budget: PositiveInt
    """K_p of the passages that were searched."""
    queries: PositiveInt
    """How many it was fitted on."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
    cost: NonNegative
    """λ: what a query slot must gain, in units of the measure."""
    penalty: NonNegative | None
    """Ridge penalty per query; None where no signal was found, and all coefficients are 0."""
    budgets: tuple[PositiveInt, ...]
    """The K_q it chooses from, ascending."""
    features: tuple[FittedFeature, ...]
    """What it looks at."""
    intercepts: tuple[float, ...]
    """Predicted value of each budget for an average query, in units of the measure."""
    coefficients: tuple[tuple[float, ...], ...]
    """For each budget, what a standard deviation of each feature adds."""


class FitSelectorJob(JobConfig):
    """Fit a selector of K_q on budget sweeps, and say by cross-validation what it gains and saves."""

    sweeps: Annotated[tuple[Place, ...], Field(min_length=1)]
    """Split folders of sweeps, such as sweeps/scifact/train, all of one retriever; the selector is fitted on all their
    queries together."""
    mode: SweepMode = "hybrid"
    """Score to choose for."""
    measure: str = "nDCG@10"
    """Measure to predict."""
    features: Annotated[tuple[str, ...], Field(min_length=1)] = ("length", "entropy")
    """What it looks at: length, entropy, content_words; mean_idf and max_idf where the sweeps still have an index."""
    cost: NonNegative = 0.0
    """λ: what a query slot must gain, in units of the measure; 0 chooses for effectiveness alone."""
    output: Place
    """Folder for fitted_selector.json and the report."""
