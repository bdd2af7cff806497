"""The analysis report of budget sweeps, which depends on neither date nor folder: Markdown, figures, JSON, Parquet."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pydantic import SerializeAsAny, SerializerFunctionWrapHandler, model_serializer, model_validator

from diffretriever.core.files import whole_file, write_bytes, write_text
from diffretriever.evaluation.formats.tables import Cell, command_blocks, listed, markdown_table
from diffretriever.studies.budgets.analysis import AnalysisData, AnalysisFacts, Section, read_data
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.budgets.features import FeatureSection
from diffretriever.studies.budgets.grids import GridSection
from diffretriever.studies.budgets.oracle_gains import OracleSection
from diffretriever.studies.budgets.oracles import SIDES, best_query_budgets
from diffretriever.studies.budgets.scoring import ScoringSection
from diffretriever.studies.budgets.significance import SignificanceSection
from diffretriever.studies.budgets.slots import SlotSection

S = TypeVar("S", bound=Section)

SECTIONS: tuple[type[Section], ...] = (
    GridSection,
    OracleSection,
    FeatureSection,
    SignificanceSection,
    ScoringSection,
    SlotSection,
)
"""In the order of the page, which is that of a paper's analysis section."""


class AnalysisReport(AnalysisFacts):
    """The file `report.json`: the facts, the numbers of every section under their own names, the command."""

    sections: tuple[SerializeAsAny[Section], ...]
    """In the order of the page; in the file their fields stand in place of this one."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""

    def section(self, kind: type[S]) -> S:
        """Return the numbers of one section."""
        return next(section for section in self.sections if isinstance(section, kind))

    def page(self) -> str:
        """Return the page in Markdown; it follows from the report alone."""
        parts = ["# Representation budgets, analysed", _introduction(self)]
        for section in self.sections:
            parts += section.page(self)
        return "\n\n".join([*parts, *command_blocks(self.command, self.config)]) + "\n"

    @model_serializer(mode="wrap")
    def _flat(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        foot = {name: values.pop(name) for name in ("command", "config")}
        for fields in values.pop("sections"):
            values |= fields
        return values | foot

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "sections" in values:
            return values
        rest = dict(values)
        fields = [(kind, kind.model_fields.keys() & rest.keys()) for kind in SECTIONS]
        sections = tuple(kind.model_validate({name: rest.pop(name) for name in names}) for kind, names in fields)
        return rest | {"sections": sections}


def analyse(job: AnalyseBudgetsJob, command: str) -> AnalysisReport:
    """Write the report into the job's output folder and return it."""
    data = read_data(job)
    report = AnalysisReport(
        **data.facts.model_dump(),
        sections=tuple(kind.compute(data) for kind in SECTIONS),
        command=command,
        # Where a report lies is no part of it: the same sweeps give the same bytes anywhere.
        config=job.model_dump(mode="json", exclude={"output"}),
    )
    for section in report.sections:
        for name, figure in section.figures(data).items():
            write_bytes(job.output / name, figure)
    with whole_file(job.output / "per_query.parquet") as stream:
        parquet.write_table(_per_query(data), stream)
    write_text(job.output / "report.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "report.md", report.page())
    write_text(job.output / "analyse_budgets.yaml", job.to_yaml())
    return report


def _introduction(facts: AnalysisFacts) -> str:
    rows: list[list[Cell]] = [
        ["retriever", facts.retriever],
        ["encoder fingerprint", facts.fingerprint],
        ["queries", ", ".join(f"{name} {n:,}" for name, n in facts.queries.items())],
        ["budgets", f"K_q in {listed(facts.query_budgets)}; K_p in {listed(facts.passage_budgets)}"],
        ["fixed budget", f"{facts.fixed}, {facts.chosen}"],
        ["measure", facts.measure],
    ]
    return markdown_table(rows, ["what", "value"])


def _per_query(data: AnalysisData) -> pa.Table:
    tables = []
    for mode in data.modes:
        for name in data.names:
            found = data.outcomes[name, mode]
            n = len(found.queries)
            columns: dict[str, object] = {"collection": [name] * n, "query": list(found.queries), "mode": [mode] * n}
            columns |= {feature: data.features[name][:, c] for c, feature in enumerate(data.feature_names)}
            columns["fixed"] = found.at(data.fixed)
            for side in SIDES:
                limits = data.oracles[mode, name, side]
                columns[f"oracle_{side}"] = limits.best_Q
                columns[f"carried_{side}"] = np.full(n, np.nan) if limits.carried_Q is None else limits.carried_Q
            columns["best_query_budget"] = best_query_budgets(found, data.fixed.passage)
            tables.append(pa.table(columns))
    return pa.concat_tables(tables)
