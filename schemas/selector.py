"""Fitted selectors of K_q: their file, and the job that fits them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.locations import Location
from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.sweep import SweepMode


class FittedFeature(Model):
    """A feature of a linear model, clipped to its range in training and standardised."""

    name: str
    """Name in `budgets/features.py`."""
    low: float
    """Smallest value in training."""
    high: float
    """Largest value in training."""
    centre: float
    """Mean in training."""
    scale: PositiveFloat
    """Standard deviation in training."""


class LearnedSelectorArtefact(Model):
    """The JSON file of a fitted selector, a linear model of each budget's gain."""

    format: Literal[1] = 1
    kind: Literal["learned"] = "learned"
    fingerprint: str
    """Fingerprint of the query encoder; the selector works only with this encoder."""
    retriever: str
    collections: tuple[str, ...]
    """Training data, as collection/split."""
    mode: SweepMode
    """Scoring mode of the predicted measure."""
    measure: str
    """Predicted measure, in ir_measures' notation."""
    passage_budget: PositiveInt
    """K_p of the searched passages."""
    queries: PositiveInt
    """Number of training queries."""
    created: str
    command: str
    cost: NonNegativeFloat
    """Minimum gain per query slot, λ, in units of the measure."""
    penalty: NonNegativeFloat | None
    """Ridge penalty per query; None if no feature predicts the gain, so that all coefficients are 0."""
    budgets: tuple[PositiveInt, ...]
    """Values of K_q to choose from, ascending."""
    features: tuple[FittedFeature, ...]
    """Features of the query."""
    intercepts: tuple[float, ...]
    """Predicted value of each budget for an average query, in units of the measure."""
    coefficients: tuple[tuple[float, ...], ...]
    """Change of each budget's value per standard deviation of each feature."""


class FitSelectorJob(JobConfig):
    """Fit a selector of K_q on budget sweeps, and cross-validate its gain and the slots that it saves."""

    sweeps: Annotated[tuple[Location, ...], Field(min_length=1)]
    """Split folders of sweeps of one retriever, such as sweeps/scifact/train. The selector is fitted on all their
    queries."""
    mode: SweepMode = "hybrid"
    """Scoring mode to optimise."""
    measure: str = "nDCG@10"
    """Measure to predict."""
    features: Annotated[tuple[str, ...], Field(min_length=1)] = ("length", "entropy")
    """Features of the query: length, entropy, content_words; also mean_idf and max_idf if the sweeps still have an
    index."""
    cost: NonNegativeFloat = 0.0
    """Minimum gain per query slot, λ, in units of the measure. 0: optimise effectiveness alone."""
    output: Location
    """Folder for fitted_selector.json and the report."""
