"""Measure an index on a collection's queries, and compare several systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diffretriever.collections import Collection, Qrels, Run, open_collection
from diffretriever.evaluation.comparison import compared
from diffretriever.evaluation.comparison_page import labelled, lettered_table, means_of
from diffretriever.evaluation.conditions import coverage_text
from diffretriever.evaluation.evaluate import search_collection
from diffretriever.evaluation.formats.pages import html_block
from diffretriever.evaluation.formats.tables import Cell, format_table
from diffretriever.evaluation.fused import FinishedRuns
from diffretriever.evaluation.measures import EvaluationResult, measures_of, parse_measures
from diffretriever.evaluation.measures import evaluate as measure
from diffretriever.front.index import Index
from diffretriever.schemas.documents import DocumentScore
from diffretriever.schemas.evaluate import ComparisonReport, Conditions, EvaluateJob, Test
from diffretriever.schemas.fusion import Fusion
from diffretriever.schemas.mode import Mode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Measured:
    """Measures of an index, by scoring mode."""

    index: str
    collection: str
    split: str
    results: dict[Mode, EvaluationResult]
    """Mean over all judged queries and value of each query, by mode."""
    runs: dict[Mode, Run]
    """Rankings by mode."""
    qrels: Qrels
    conditions: dict[Mode, Conditions]
    """Conditions of each mode, such as the passages that the index contains, lengths and costs."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the measures."""
    notes: tuple[str, ...] = ()
    """Decisions that affect the measures, such as self-exclusion."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the means: one row per mode, one column per measure."""
        import pandas as pd

        return pd.DataFrame({mode: result.mean for mode, result in self.results.items()}).T

    def __repr__(self) -> str:
        measures = list(next(iter(self.results.values())).mean)
        rows: list[list[Cell]] = [[mode, *result.mean.values()] for mode, result in self.results.items()]
        coverage = next(iter(self.conditions.values())).coverage
        notes = [] if coverage is None else [coverage_text(["the index"], coverage)]
        notes += [*(f"warning: {text}" for text in self.warnings), *(f"note: {text}" for text in self.notes)]
        return "\n".join([f"{self._caption()}\n{format_table(rows, ['mode', *measures])}", *notes])

    def _repr_html_(self) -> str:
        return str(self.to_pandas().style.format("{:.4f}").set_caption(self._caption()).to_html())

    def _caption(self) -> str:
        return f"{self.index} on {self.collection}, {self.split}"


def evaluate(
    index: Index,
    collection: str | Collection,
    *,
    split: str = "test",
    measures: Sequence[str] | None = None,
    modes: Sequence[Mode] | None = None,
    k: int = 1000,
    documents: DocumentScore | None = None,
) -> Measured:
    """Search for a collection's queries and measure the rankings with ir_measures.

    Args:
        index: an index of the collection's passages.
        collection: path, URI or name of a collection, or an open one.
        split: split of the qrels.
        measures: names in ir_measures' notation. Default: nDCG@10, MRR@10 and Recall@100; on TREC's graded queries,
            grades 2 and above are relevant.
        modes: scores to rank by. Default: the retriever's own scores and its default mode.
        k: depth of the rankings.
        documents: rank documents by their chunks, as in `Index.search`, for judgements of documents.

    Raises:
        ValueError: unknown collection, split, measure, mode or `documents`, the index contains no relevant passage, or
            it contains chunks of judged documents and `documents` is not set.

    Example:
        >>> measured = dr.evaluate(index, "garden", modes=["bm25"], measures=["nDCG@10"])  # garden: a BEIR folder
        >>> measured.to_pandas()
              nDCG@10
        bm25      1.0
    """
    source = open_collection(collection) if isinstance(collection, str) else collection
    job = EvaluateJob(
        index=index.location,
        collection=source.name,
        split=split,
        measures=tuple(measures or measures_of(source.name, split)),
        modes=tuple(modes or ()),
        top_k=k,
        documents=documents,
        output=Path(),
    )
    parse_measures(job.measures)
    searched = search_collection(index.searcher, source, job)
    results = {mode: measure(run, searched.qrels, job.measures) for mode, run in searched.runs.items()}
    return Measured(
        index=index.location,
        collection=source.name,
        split=split,
        results=results,
        runs=searched.runs,
        qrels=searched.qrels,
        conditions=searched.conditions,
        warnings=tuple(searched.warnings("the index")),
        notes=searched.notes,
    )


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several systems, compared on the same queries."""

    report: ComparisonReport
    """Means, confidence intervals and significant differences."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the means: one row per system and mode, one column per measure."""
        import pandas as pd

        rows = {(name, mode): mean for name, modes in self.report.measures.items() for mode, mean in modes.items()}
        return pd.DataFrame(rows).T

    def __repr__(self) -> str:
        return lettered_table(self.report)

    def _repr_html_(self) -> str:
        return html_block(means_of(self.report))


def compare(systems: Mapping[str, Measured], *, test: Test = "t-test", fusions: Sequence[Fusion] = ()) -> Comparison:
    """Compare results of `evaluate` on the same queries, as `jobs/compare.py` compares runs.

    Args:
        systems: results by name; at most 26 systems and modes.
        test: paired significance test over queries, with Holm's correction.
        fusions: methods that fuse all systems with equal weights: `min-max`, `z-score`, `reciprocal-rank`, `linear`.

    Raises:
        ValueError: queries or measures differ, there are too many systems, or fused runs share no passage.

    Example:
        >>> bm25 = dr.evaluate(index, "garden", modes=["bm25"], measures=["nDCG@10"])
        >>> slots = dr.evaluate(index, "garden", modes=["dense"], measures=["nDCG@10"])
        >>> dr.compare({"BM25": bm25, "slots": slots}).to_pandas()
                     nDCG@10
        BM25  bm25       1.0
        slots dense      1.0
    """
    if not systems:
        raise ValueError("systems: empty: pass at least one result of evaluate")
    results = {name: measured.results for name, measured in systems.items()}
    results.update({f"fused by {by}": {by: result} for by, result in _fused(systems, fusions).items()})
    conditions = labelled({name: measured.conditions for name, measured in systems.items()})
    notes = list(dict.fromkeys(text for measured in systems.values() for text in measured.notes))
    title, command = ", ".join(systems), "diffretriever.compare"
    return Comparison(compared(title, results, command, test, conditions=conditions, notes=notes))


def _fused(systems: Mapping[str, Measured], fusions: Sequence[Fusion]) -> dict[Fusion, EvaluationResult]:
    if not fusions:
        return {}
    first = next(iter(systems.values()))
    measures = list(next(iter(first.results.values())).mean)
    named = {f"{name} {mode}": run for name, measured in systems.items() for mode, run in measured.runs.items()}
    runs = FinishedRuns.of(named, first.qrels)
    return {by: measure(run, first.qrels, measures) for by, run in runs.fused_alike(fusions, measures).items()}
