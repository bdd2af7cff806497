"""The reproduction of the paper's tables: the job's config, and a table as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import DirectoryPath, Field, model_validator

from schemas.base import Model
from schemas.places import Place
from schemas.settings import RayConfig

Scoring: TypeAlias = Literal["maxsim", "pooled-slots"]
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]
"""Collection → mode → measure → value; None where the paper has no value and the job still measures one."""


class ReproduceJob(RayConfig):
    """Run those rows of the paper's tables that can be run here, and print ours beside the paper's."""

    tables: tuple[str, ...] = ()
    """Tables by name; default: all. `mini` is not the paper's: all methods on the embedded backbone."""
    collections: dict[str, str] = Field(default_factory=dict)
    """NAME=PATH, repeatable: where a collection lies. NAME is BEIR's, or msmarco, msmarco-dev, dl19, dl20; PATH is what
    encode_beir.py takes, so `nq=nq` downloads NQ."""
    collections_root: DirectoryPath | None = None
    """Folder with a subfolder for each collection, named as BEIR names it."""
    backbones: dict[str, DirectoryPath] = Field(default_factory=dict)
    """SOURCE=FOLDER, repeatable: weights in place of a backbone that the presets name. Other weights than the
    published ones make other numbers; the report names every one."""
    adapters: dict[str, DirectoryPath] = Field(default_factory=dict)
    """PRESET=FOLDER, repeatable: LoRA adapter for the fine-tuned rows of a preset."""
    mini_collection: str = "scifact"
    """Collection of the table `mini`."""
    analyses: dict[str, Place] = Field(default_factory=dict)
    """BACKBONE=FOLDER, repeatable: a report of analyse_budgets.py for the figures on budgets, such as
    Dream=analyses/dream; its sweeps may be of any of the paper's collections."""
    latencies: Place | None = None
    """Latencies measured by `python -m benchmarks.latency`, for the figures on latency."""
    output: Place
    """Folder or URI for indexes, evaluations and the report; the same command again goes on from what is there."""
    dry_run: bool = False
    """List every row with what it lacks, and stop: nothing is loaded and nothing is fetched."""


class PublishedRow(Model):
    """One system of a table."""

    id: str
    """Name within the table."""
    regime: Literal["zero-shot", "fine-tuned"] | None = None
    """The block of the table; None where it has none."""
    system: str
    backbone: str | None = None
    """As the paper calls it."""
    variant: str
    forward_passes: str | None = None
    """Forward passes of a query, such as `1` or `≤20`."""
    preset: str | None = None
    """Retriever that runs this row; None where nothing here does."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fields of the retriever that differ from the preset's."""
    needs_adapter: bool = False
    """Fine-tuned weights that nobody has published."""
    reported: bool = False
    """The paper cites these figures from elsewhere."""
    scoring: Scoring = "maxsim"
    """`pooled-slots`: the dense score of averaged slots (paper §6.1)."""
    against: tuple[str, ...] = ()
    """Rows that this one is compared with by a paired test."""
    figures: Figures
    """What the paper prints."""

    @property
    def label(self) -> str:
        """A name for people."""
        return " ".join(part for part in (self.regime, self.system, self.backbone, self.variant) if part)


class PublishedTable(Model):
    """One table of the paper, or the built-in `mini`."""

    id: str
    place: str
    """Where the paper has it."""
    caption: str
    correction: Literal["none", "holm"] = "none"
    """What is done to the p-values of one column; the paper does nothing."""
    protocol: str | None = None
    """Of all rows; the plan has a table once for each protocol."""
    rows: tuple[PublishedRow, ...]

    @model_validator(mode="after")
    def _rows_fit(self) -> PublishedTable:
        ids = [row.id for row in self.rows]
        if len(set(ids)) != len(ids):
            raise ValueError(f"table {self.id}: two rows have the same id")
        unknown = {other for row in self.rows for other in row.against} - set(ids)
        if unknown:
            raise ValueError(f"table {self.id}: no row {', '.join(sorted(unknown))} to compare with")
        return self
