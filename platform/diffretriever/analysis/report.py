"""From sweeps on disk to the report: `report.md` with its figures, `report.json`, `per_query.parquet`.

Nothing in these files depends on when or where they are made: equal sweeps and command give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from diffretriever.analysis.against import against_tests
from diffretriever.analysis.comparisons import cells, scoring, systems
from diffretriever.analysis.data import AnalysisData, read_data
from diffretriever.analysis.feature_figure import draw_features
from diffretriever.analysis.findings import all_oracles, correlations, grids, oracle_gains
from diffretriever.analysis.grid_figure import draw_grids
from diffretriever.analysis.oracle_figure import draw_oracles
from diffretriever.analysis.page import analysis_page
from diffretriever.analysis.scoring_figure import draw_scoring
from diffretriever.analysis.slots import similarities, wins
from diffretriever.analysis.slots_figure import draw_slots
from diffretriever.budgets.oracles import SIDES, Oracle, Side, best_query_budgets
from diffretriever.files import whole_file, write_bytes, write_text
from schemas.analyse import AnalyseBudgetsJob, AnalysisReport
from schemas.sweep import SweepMode


def analyse(job: AnalyseBudgetsJob, command: str) -> AnalysisReport:
    """Write the report into the job's output folder, each file whole or not at all; return what is in the JSON.

    Raises:
        ValueError: as `read_data` has it.
    """
    data = read_data(job)
    oracles = all_oracles(data)
    report = _report(job, data, oracles, command)
    for name, figure in _figures(report, data).items():
        write_bytes(job.output / name, figure)
    with whole_file(job.output / "per_query.parquet") as stream:
        parquet.write_table(_per_query(data, oracles), stream)
    write_text(job.output / "report.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "report.md", analysis_page(report))
    write_text(job.output / "analyse_budgets.yaml", job.to_yaml())
    return report


def _report(
    job: AnalyseBudgetsJob,
    data: AnalysisData,
    oracles: Mapping[tuple[SweepMode, str, Side], Oracle],
    command: str,
) -> AnalysisReport:
    manifest = data.splits[data.names[0]].manifest
    return AnalysisReport(
        retriever=manifest.retriever,
        fingerprint=manifest.fingerprint,
        measure=data.measure,
        fixed=data.fixed,
        chosen=data.chosen,
        query_budgets=manifest.query_budgets,
        passage_budgets=manifest.passage_budgets,
        modes=data.modes,
        queries={name: len(data.outcomes[name, data.modes[0]].queries) for name in data.names},
        grids=tuple(grids(data)),
        oracles=tuple(oracle_gains(data, oracles)),
        correlations=tuple(correlations(data)),
        systems=tuple(systems(data)),
        cells=tuple(cells(data)),
        scoring=tuple(scoring(data)),
        similarities=tuple(similarities(data)),
        wins=tuple(wins(data)),
        against=tuple(against_tests(data, oracles)),
        command=command,
        # Where a report lies is no part of it: the same sweeps give the same bytes anywhere.
        config=job.model_dump(mode="json", exclude={"output"}),
    )


def _figures(report: AnalysisReport, data: AnalysisData) -> dict[str, bytes]:
    figures = {"features.png": draw_features(report, data)}
    for mode in report.modes:
        figures[f"grid-{mode}.png"] = draw_grids(report, [g for g in report.grids if g.mode == mode])
        figures[f"oracles-{mode}.png"] = draw_oracles(report, [g for g in report.oracles if g.mode == mode])
    if report.scoring:
        figures["scoring.png"] = draw_scoring(report)
    if report.similarities:
        figures["slots.png"] = draw_slots(report)
    return figures


def _per_query(data: AnalysisData, oracles: Mapping[tuple[SweepMode, str, Side], Oracle]) -> pa.Table:
    """Return a row for each query and mode: its features, what budgets and oracles give it, the oracle's K_q."""
    tables = []
    for mode in data.modes:
        for name in data.names:
            found = data.outcomes[name, mode]
            n = len(found.queries)
            columns: dict[str, object] = {"collection": [name] * n, "query": list(found.queries), "mode": [mode] * n}
            columns |= {feature: data.features[name][:, c] for c, feature in enumerate(data.feature_names)}
            columns["fixed"] = found.at(data.fixed)
            for side in SIDES:
                limits = oracles[mode, name, side]
                nothing = np.full(n, np.nan)
                columns[f"oracle_{side}"] = limits.best_Q
                columns[f"carried_{side}"] = nothing if limits.carried_Q is None else limits.carried_Q
            columns["best_query_budget"] = best_query_budgets(found, data.fixed.passage)
            tables.append(pa.table(columns))
    return pa.concat_tables(tables)
