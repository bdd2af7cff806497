"""The page of an analysis, in Markdown, in the order of a paper's analysis section."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import parquet

from diffretriever.evaluation.budgets.against import against_section, against_tests
from diffretriever.evaluation.budgets.data import AnalysisData, read_data
from diffretriever.evaluation.budgets.features import _feature_section, correlations, draw_features
from diffretriever.evaluation.budgets.grids import _grid_section, draw_grids, grids
from diffretriever.evaluation.budgets.oracles import (
    SIDES,
    Oracle,
    Side,
    _oracle_section,
    all_oracles,
    best_query_budgets,
    draw_oracles,
    oracle_gains,
)
from diffretriever.evaluation.budgets.scoring import draw_scoring, scoring
from diffretriever.evaluation.budgets.significance import cells, comparison_sections, systems
from diffretriever.evaluation.budgets.slots import draw_slots, similarities, slots_section, wins
from diffretriever.evaluation.tables import (
    Cell,
    markdown_table,
)
from diffretriever.files import whole_file, write_bytes, write_text
from schemas.analyse import AnalyseBudgetsJob, AnalysisReport
from schemas.sweep import SweepMode


def analysis_page(report: AnalysisReport) -> str:
    """Return the whole page."""
    parts = [
        "# Representation budgets, analysed",
        _introduction(report),
        *_grid_section(report),
        *_oracle_section(report),
        *against_section(report),
        *_feature_section(report),
        *comparison_sections(report),
        *slots_section(report),
        "## Command",
        f"```\n{report.command}\n```",
        "<details><summary>Resolved config</summary>",
        f"```yaml\n{yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(report: AnalysisReport) -> str:
    rows: list[list[Cell]] = [
        ["retriever", report.retriever],
        ["encoder fingerprint", report.fingerprint],
        ["queries", ", ".join(f"{name} {n:,}" for name, n in report.queries.items())],
        ["budgets", f"K_q in {_listed(report.query_budgets)}; K_p in {_listed(report.passage_budgets)}"],
        ["fixed budget", f"{report.fixed}, {report.chosen}"],
        ["measure", report.measure],
    ]
    return markdown_table(rows, ["what", "value"])


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


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
