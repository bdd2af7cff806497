"""The configs of the jobs: what `python jobs/X.py` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from schemas.accelerate import CandidatesChoice, Share
from schemas.budget import BudgetChoice
from schemas.places import IndexPlace
from schemas.retriever import Mode
from schemas.search import QueryBudgetOptions
from schemas.settings import JobConfig, ModelOptions

NonNegative = Annotated[float, Field(ge=0)]
DEFAULT_MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


class RayConfig(ModelOptions):
    """Where encoders run."""

    ray_address: str = "auto"
    """Ray cluster to use; `auto` is a running one if there is, else a local one started for this job; `local` always
    starts one."""
    encoders: PositiveInt | None = None
    """Encoder actors; default: as many as the cluster has room for."""
    cpus_per_encoder: PositiveFloat | None = None
    """CPUs a Ray scheduler sets aside for an encoder; default: 1 beside a GPU, 0.75 without."""
    gpus_per_encoder: NonNegative | None = None
    """GPUs of an encoder, fractions allowed; default: 1 if the cluster has any, else 0."""
    threads_per_encoder: PositiveInt = 1
    """CPU threads of an encoder's maths."""
    autoscale: bool = False
    """The cluster can add machines: grow the pool from 1 to `encoders` as they come, and do not check the request
    against what is there now."""


class EncodeJob(RayConfig):
    """Encode a collection into an index: exactly once, resumable by running the same command again."""

    collection: str
    """BEIR folder or zip, MS MARCO folder, corpus file, or a name: `pydoc` (built in) or a BEIR set to download."""
    retriever: str = "diffretriever-minilm"
    """Name of a preset, or a YAML file that describes a retriever."""
    index: IndexPlace
    """Folder or object-store URI of the index; made if it is not there, added to if it is."""
    backbone: str | None = None
    """Local folder or hub id to use in place of the retriever's own backbone."""
    adapter: str | None = None
    """Local folder or hub id of a LoRA adapter to use in place of the retriever's own."""
    budget: BudgetChoice | None = None
    """Slots as q<K_q>p<K_p>, for example q4p16, in place of the retriever's own; or the selection.json of a budget
    sweep."""
    on_bad_input: Literal["error", "quarantine"] = "error"
    """What to do with records that cannot be encoded: stop before anything starts, or set them aside in a file. A
    passage that the retriever encodes as NaN or infinity stops the job when it is met, or is set aside too."""
    quarantine: Path | None = None
    """That file; default: `quarantine.jsonl` in a local index folder, or in the current one. Records that it holds of
    other collections stay."""
    on_existing: Literal["error", "skip", "replace"] = "error"
    """What to do with a passage whose id is in the index with another text. The same text is never encoded twice."""
    rows_per_block: PositiveInt | None = None
    """Passages encoded and committed together; default: what keeps a block near 32 MB, 512 at the most."""
    compact: bool = True
    """Join the table's small fragments at the end."""


class SearchOptions(ModelOptions):
    """What searching an index needs to know."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    backbone: str | None = None
    """Where the index's backbone lies now, if it has moved; it must be the same weights."""
    adapter: str | None = None
    """Where its adapter lies now, likewise."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto`: a GPU if there is one."""
    memory_mb: PositiveInt = 1024
    """Memory that scoring may use beside the model."""
    maxsim: Literal["mean", "sum-floored"] = "mean"
    """Dense score: mean over query slots (paper), or sum with negative maxima as 0 (the authors' code)."""
    search_budget: PositiveInt | Literal["auto", "exact"] = "auto"
    """Passages that a candidate index may name for scoring; `exact` asks for all; `auto` is the calibrated number
    where accelerate_index.py made a candidate index, and otherwise all."""
    score_dtype: Literal["float32", "bfloat16-legacy"] = "float32"
    """Precision of dense products; the authors' bfloat16 loses 2-5 % of the true top 10."""


class SearchJob(SearchOptions, QueryBudgetOptions):
    """Ask an index one question and see the ranked passages."""

    query: str
    """The question."""
    mode: Mode | None = None
    """Score to rank by; default: hybrid where the index offers it, else what it has."""
    top_k: PositiveInt = 10
    """Passages to show."""
    json_output: bool = False
    """Print JSON instead of text."""


class EvaluateJob(SearchOptions, QueryBudgetOptions):
    """Search an index with a collection's queries, or take a finished run, and measure it against the qrels."""

    index: IndexPlace = ""
    """Folder or object-store URI of the index to search."""
    collection: str | None = None
    """Collection whose queries and qrels are used; see encode_beir.py."""
    split: str = "test"
    """Split of the qrels."""
    run: Path | None = None
    """TREC run to score in place of searching an index; needs --qrels, or --collection with --split."""
    qrels: Path | None = None
    """Qrels file, TREC (4 columns) or BEIR (3 columns), for --run."""
    output: Path
    """Folder for metrics.json, the runs, per-query results and the report."""
    measures: tuple[str, ...] = DEFAULT_MEASURES
    """Measures as ir_measures writes them."""
    top_k: PositiveInt = 1000
    """Passages kept per query."""
    exclude_self: bool = True
    """Drop a query's own document (same id), as BEIR does for ArguAna and Quora; off matches the paper."""

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateJob:
        if self.run is not None:
            if self.selector is not None:
                raise ValueError("--selector goes with --index: a finished run has its budgets behind it")
            if self.index:
                raise ValueError("give --run or --index, not both")
            if self.qrels is None and self.collection is None:
                raise ValueError("--run needs --qrels FILE, or --collection and --split")
            return self
        if not self.index or self.collection is None:
            raise ValueError("give --index and --collection to search, or --run and --qrels to score a finished run")
        if self.qrels is not None:
            raise ValueError("--qrels goes with --run; with --index the collection's own qrels are used")
        return self


class InspectJob(JobConfig):
    """Say what is in an index: its retriever, passages by collection, versions, size; check it if asked."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    verify: bool = False
    """Read all of it and check ids, digests, vectors, impacts, codes and counts; exit status 1 if anything is wrong."""
    json_output: bool = False
    """Print JSON instead of text."""


class MaintainJob(JobConfig):
    """Delete passages from an index, or compact it."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    delete: tuple[str, ...] = ()
    """Ids of passages to delete; repeat the flag or separate by commas."""
    delete_from: Path | None = None
    """File with ids of passages to delete, one a line."""
    compact: bool = False
    """Join small fragments, drop deleted rows, forget versions older than an hour."""


class AccelerateJob(ModelOptions):
    """Make an index fast to search: codes, postings, a candidate index where asked for; results stay the same."""

    index: IndexPlace
    """Local folder of the index."""
    candidates: CandidatesChoice = "none"
    """Candidate index to calibrate: only what it names is scored, exactly. `mean` goes by passages' mean vectors,
    `plaid` by the centroids of slot vectors; `auto` tries both. Where none is faster at that recall, all are scored.
    Worth it from about a hundred thousand passages on; below, the exact scan of the codes is fast enough."""
    recall: Share = 0.99
    """Recall@top_k that the search budget is chosen for, on queries made from the index's own passages."""
    top_k: PositiveInt = 100
    """Depth of that recall."""
    sample: PositiveInt = 200
    """Queries to calibrate with."""
    backbone: str | None = None
    """Where the index's backbone lies now, if it has moved."""
    adapter: str | None = None
    """Where its adapter lies now, likewise."""
    workers: PositiveInt | Literal["auto"] = "auto"
    """Fragments worked on at a time, by Ray where it is more than 1; `auto`: as many as there are CPUs where many
    passages wait in several fragments, else 1."""


class DemoJob(RayConfig):
    """Encode the built-in collection with three retrievers, search its queries, compare them."""

    collection: str = "pydoc"
    """Collection to use."""
    split: str = "test"
    """Split of its qrels."""
    output: Path = Path("demo")
    """Folder for indexes and the report."""
