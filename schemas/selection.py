"""The budget that a sweep chose, an artefact that can stand wherever a budget is given; and what a selector did."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from schemas.base import Model
from schemas.budget import Budget
from schemas.manifest import IndexManifest
from schemas.retriever import MaskedRetriever
from schemas.sweep import SweepMode


class BudgetSelection(Model):
    """The file `selection.json` of a sweep: the best budget on one split, and the grid that it is the best of."""

    format: Literal[1] = 1
    """Version of the file's layout."""
    budget: Budget
    """The argmax; of equal cells the one with fewer slots K_q + K_p, of those the one with fewer query slots."""
    mode: SweepMode
    """Score that was ranked by."""
    measure: str
    """As ir_measures writes it."""
    split: str
    """Split that it was chosen on."""
    value: float
    """Mean of the measure with this budget."""
    grid: dict[Budget, float]
    """Mean of every budget that was tried."""
    queries: int
    """Queries of the split."""
    collection: str
    """Name of the collection."""
    retriever: str
    """What was swept, for people to read."""
    backbone: str
    """Its weights, as they were named; only a retriever of the same may use the selection."""
    adapter: str | None
    """Its adapter, likewise."""
    fingerprint: str
    """Of the encoder whatever its budget; see `encoder_fingerprint`."""
    command: str
    """The command line."""


class SelectorReport(Model):
    """The file `selector.json` of an evaluation: what a selector chose, and what encoding took. K_q are the keys."""

    selector: str
    """Its name, such as `rule`."""
    own_budget: int
    """The retriever's own K_q."""
    mean_budget: float
    """Mean K_q over the queries."""
    queries: dict[int, int]
    """How many queries got it; the selector's budgets and the retriever's own."""
    milliseconds: dict[int, float]
    """Median time of encoding a query alone with it."""
    adaptive_milliseconds: float
    """The same with the K_q chosen, the choice included."""
    timed: int
    """Queries that were timed."""


def read_selection(path: Path) -> BudgetSelection:
    """Read a selection.

    Raises:
        ValueError: no such file, or no selection in it.
    """
    if not path.is_file():
        raise ValueError(f"no file {path}: give a budget such as q4p16, or the selection.json of a budget sweep")
    try:
        return BudgetSelection.model_validate_json(path.read_text("utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        reason = str(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error)
        raise ValueError(
            f"{path} is no selection of a budget, as jobs/sweep_budgets.py writes it to selection.json: "
            f"{reason.removeprefix('Value error, ')}"
        ) from error


def encoder_fingerprint(manifest: IndexManifest) -> str:
    """Return the fingerprint of an encoder whatever its budget: the same for all cells of a sweep."""
    retriever = manifest.retriever
    if isinstance(retriever, MaskedRetriever):
        retriever = retriever.model_copy(update={"budget": Budget(1, 1)})
    return manifest.model_copy(update={"retriever": retriever}).fingerprint
