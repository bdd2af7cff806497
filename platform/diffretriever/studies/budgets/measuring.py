"""Measures of a sweep: evaluate its runs for every query, and choose the best budget.

Legend: A query budgets, B passage budgets.
"""

from __future__ import annotations

from pathlib import Path

from diffretriever.collections import Qrels, open_collection, read_run
from diffretriever.core.files import is_file, write_text
from diffretriever.evaluation.formats.tables import Cell, format_table
from diffretriever.evaluation.measures import evaluate, official_measure
from diffretriever.presets import RETRIEVERS
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.sweep import RETRIEVER_FILE, BudgetSelection, SweepJob, SweepManifest, SweepMode
from diffretriever.studies.budgets.sweep_files import Outcomes, read_manifest, read_queries, write_outcomes

SELECTION_FILE = "selection.json"

# Default split for the selection.
_TRAIN = "train"


def measure_sweep(job: SweepJob) -> SweepManifest:
    """Evaluate every run of the sweep into `<split>/per_query.parquet` and return its manifest."""
    manifest = read_manifest(job.output)
    collection = open_collection(job.collection)
    for split in manifest.splits:
        swept = read_queries(job.output, split)
        qrels = {query: judged for query, judged in collection.qrels(split).items() if query in swept}
        cells = {
            (mode, budget): _measured(job.output / split / "runs" / str(budget) / f"{mode}.trec", qrels, manifest)
            for budget in (Budget(q, p) for q in manifest.query_budgets for p in manifest.passage_budgets)
            for mode in manifest.modes
        }
        write_outcomes(job.output, split, cells)
    return manifest


def select_budget(job: SweepJob, manifest: SweepManifest) -> BudgetSelection | None:
    """Choose the best budget of a measured sweep and write `selection.json`; None without a split to choose on."""
    split = job.select_split or (_TRAIN if _TRAIN in manifest.splits else None)
    if split is None:
        return None
    mode: SweepMode = "hybrid" if "hybrid" in manifest.modes else manifest.modes[-1]
    measure = _measure_of(manifest, split)
    outcomes = Outcomes.read(job.output, split, mode, measure)
    grid = {budget: float(outcomes.at(budget).mean()) for budget in outcomes.budgets}
    best = outcomes.best()
    retriever = RETRIEVERS.load(str(job.output / RETRIEVER_FILE))
    if not has_slots(retriever):
        raise ValueError(f"{job.output / RETRIEVER_FILE} is of the {retriever.method} method, which has no budget")
    selection = BudgetSelection(
        budget=best,
        mode=mode,
        measure=measure,
        split=split,
        value=grid[best],
        grid=grid,
        queries=len(outcomes.queries),
        collection=manifest.collection,
        retriever=manifest.retriever,
        backbone=retriever.backbone.source,
        adapter=retriever.backbone.adapter,
        fingerprint=manifest.fingerprint,
        command=manifest.command,
    )
    write_text(job.output / SELECTION_FILE, selection.model_dump_json(indent=2) + "\n")
    return selection


def sweep_tables(folder: Path | StorePath, manifest: SweepManifest) -> str:
    """Return the grids of the split's own measure as plain text, one for each mode, a star at the best cell."""
    parts = []
    for split in manifest.splits:
        measure = _measure_of(manifest, split)
        for mode in manifest.modes:
            outcomes = Outcomes.read(folder, split, mode, measure)
            title = f"{manifest.collection} {split}: {measure}, {mode}, {len(outcomes.queries):,} queries"
            parts.append(f"{title}\n{_grid(outcomes)}")
    return "\n\n".join(parts)


def _measure_of(manifest: SweepManifest, split: str) -> str:
    official = official_measure(manifest.collection, split)
    return official if official in manifest.measures else manifest.measures[0]


def _grid(outcomes: Outcomes) -> str:
    best, means_AB = outcomes.best(), outcomes.values_ABQ.mean(axis=2)
    rows: list[list[Cell]] = []
    for number, means_B in zip(outcomes.query_budgets, means_AB, strict=True):
        budgets = [Budget(number, passage) for passage in outcomes.passage_budgets]
        cells = [f"{mean:.4f}{'*' if budget == best else ''}" for budget, mean in zip(budgets, means_B, strict=True)]
        rows.append([f"K_q = {number}", *cells])
    return format_table(rows, ["", *(f"K_p = {number}" for number in outcomes.passage_budgets)])


def _measured(run: Path | StorePath, qrels: Qrels, manifest: SweepManifest) -> dict[str, dict[str, float]]:
    if not is_file(run):
        raise ValueError(f"{run} is missing: run jobs/sweep_budgets.py again to the end")
    return evaluate(read_run(run), qrels, manifest.measures).per_query
