"""The reproduction of the paper's tables: the job's config, and a table as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import DirectoryPath, Field, model_validator

from diffretriever.protocols import Regime
from diffretriever.schemas.base import CommaSeparated, Model
from diffretriever.schemas.locations import Location
from diffretriever.schemas.settings import EncoderActors

Scoring: TypeAlias = Literal["maxsim", "pooled-slots"]
Measured: TypeAlias = Literal["maxsim", "pooled-slots", "compressed"]
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]
"""Collection → mode → measure → value; None where the paper has no value and the job still measures one."""


UNCOMPRESSED: Literal["dense"] = "dense"
COMPRESSED: Literal["compressed"] = "compressed"
"""What the dense scores of an index are called in a table, before and after it is compressed."""
STORAGE_FILE = "storage.json"
"""Beside the evaluation of a compressed index: `IndexStorage`."""
_MIB, _GIB = 1 << 20, 1 << 30


class ReproduceJob(EncoderActors):
    """Run the rows of the paper's tables whose models and collections are available, and compare with the paper's."""

    tables: tuple[str, ...] = ()
    """Tables by name; default: all. `mini` is not the paper's: all methods on the embedded backbone."""
    protocol: CommaSeparated = ()
    """Settings of the paper's rows: `authors`, of the authors' code; `paper`, of its text; `folded`, content words in
    both forms. Default: authors and paper."""
    collections: dict[str, str] = Field(default_factory=dict)
    """Collections as NAME=COLLECTION, repeatable. NAME is BEIR's, or msmarco, msmarco-dev, dl19, dl20; COLLECTION is as
    in encode_beir.py, so `nq=nq` downloads NQ."""
    collections_root: DirectoryPath | None = None
    """Folder with a subfolder or BEIR's zip for each collection, named as BEIR names it; MS MARCO is `msmarco`."""
    backbones: dict[str, DirectoryPath] = Field(default_factory=dict)
    """SOURCE=FOLDER, repeatable: weights in place of a backbone of the presets. The report names each, because other
    weights than the published ones change the results."""
    adapters: dict[str, DirectoryPath] = Field(default_factory=dict)
    """PRESET=FOLDER, repeatable: LoRA adapter for the fine-tuned rows of a preset."""
    analyses: dict[str, Location] = Field(default_factory=dict)
    """BACKBONE=FOLDER, repeatable: a report of analyse_budgets.py for the figures on budgets, such as
    Dream=analyses/dream; its sweeps may be of any of the paper's collections."""
    latencies: Location | None = None
    """Latencies measured by `python -m benchmarks.latency`, for the figures on latency."""
    output: Location
    """Folder or URI for indexes, evaluations and the report; the same command resumes."""
    dry_run: bool = False
    """List every row and its missing inputs, then stop: nothing is loaded and nothing is fetched."""


class PublishedRow(Model):
    """One system of a table."""

    id: str
    """Name within the table."""
    regime: Regime | None = None
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
    """Fields of the retriever that differ from the preset's, whatever the protocol."""
    protocol: str | None = None
    """Name of what it is run under; the plan fills it in, and None is the preset as it is."""
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
    def measured(self) -> Measured:
        """What is to be measured of its index."""
        has_compressed = any(COMPRESSED in modes for modes in self.figures.values())
        return COMPRESSED if has_compressed else self.scoring

    @property
    def label(self) -> str:
        """A name for people."""
        name = " ".join(part for part in (self.regime, self.system, self.backbone, self.variant) if part)
        return name if self.protocol is None else f"{name}, {self.protocol}"


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


class IndexStorage(Model):
    """The file `storage.json`: bytes of an index's vectors before and after."""

    vectors: int
    raw: int
    """In bf16."""
    zstd: int
    """Of that, what zstd leaves: its share of a sample, times `raw`."""
    codes: int
    """Codes of all vectors, and the codec."""

    def sizes(self) -> dict[str, dict[str, float]]:
        """Return the figures of the paper's table by mode: GiB, MiB and the ratio."""
        found: dict[str, dict[str, float]] = {
            mode: {"GiB": size / _GIB, "MiB": size / _MIB}
            for mode, size in ((UNCOMPRESSED, self.zstd), (COMPRESSED, self.codes))
        }
        found[COMPRESSED]["ratio"] = self.zstd / self.codes
        return found
