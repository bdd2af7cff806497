"""Figure 7: the best number of query slots against features of the query, all collections pooled.

Legend: N queries.
"""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from pyarrow import parquet

from diffretriever.core.files import open_input, understood
from diffretriever.evaluation.figures import BLUE, GREEN, INK, MUTED, ORANGE, panel_figure, png, quiet
from diffretriever.studies.budgets.features import FeatureSection, binned_means
from diffretriever.studies.reproduction.exhibits.analyses import MADE_BY, Analysis, shown_names
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.published import ANALYSES, BACKBONES, figure_facts

_MODES = ("dense", "sparse")
_FEATURES = {"length": "query length (tokens)", "entropy": "query entropy (bits)"}
_CAPTION = (
    "The query budget that is best for a query, means in bins of about equal size, with rank correlations over all "
    "queries pooled, each collection by its own measure. Lines and `ours`: measured here. `paper`: Spearman's rho from "
    "its text, which has no other numbers but that dense peaks rise from about 2 slots to about 8 (dotted)."
)


class QueryFeatures(Exhibit):
    """From the analyses' values of single queries."""

    flags = ANALYSES

    def lacks(self, findings: Findings) -> list[str]:
        """Return the backbones without an analysis."""
        missing = [name for name in BACKBONES if name not in findings.analyses]
        return [f"no analysis of {' and '.join(missing)} (jobs/analyse_budgets.py)"] if missing else []

    def show(self, findings: Findings) -> Shown:
        """Draw a panel for each score and feature."""
        return self.picture(findings, _CAPTION, _drawn(findings))


def correlation(analysis: Analysis, mode: str, feature: str) -> float | None:
    """Return Spearman's coefficient over all queries pooled, or None where the analysis has none."""
    wanted = ("pooled", mode, feature, "all")
    for found in analysis.report.section(FeatureSection).correlations:
        if (found.collection, found.mode, found.feature, found.queries) == wanted:
            return found.spearman.value
    return None


def _drawn(findings: Findings) -> bytes:
    title, subtitle = (
        "Which queries want more slots",
        "all collections pooled; dashed: LLaDA; dotted: what the paper's text says",
    )
    figure, panels = panel_figure(4, 2, (4.1, 2.7), title, subtitle, margin_inches=(0.2, 0.2))
    tables = {name: _values(analysis) for name, analysis in findings.analyses.items()}
    for number, panel in enumerate(panels):
        mode, feature = _MODES[number // 2], list(_FEATURES)[number % 2]
        _draw(panel, mode, feature, findings, tables)
    return png(figure)


def _values(analysis: Analysis) -> dict[str, list[object]]:
    file = analysis.folder / "per_query.parquet"
    with understood(file, MADE_BY), open_input(file) as stream:
        columns: dict[str, list[object]] = parquet.read_table(io.BytesIO(stream.read())).to_pydict()
    return columns


def _draw(panel: Axes, mode: str, feature: str, findings: Findings, tables: dict[str, dict[str, list[object]]]) -> None:
    quiet(panel, "y")
    paper = figure_facts().correlations[mode][feature]
    said = []
    colours = {"Dream": BLUE, "LLaDA": ORANGE}
    for name in shown_names(findings.analyses, BACKBONES):
        ours = None
        if name in tables and feature in tables[name]:
            of_mode = np.array(tables[name]["mode"]) == mode
            features_N = np.array(tables[name][feature], dtype=np.float64)[of_mode]
            best_N = np.array(tables[name]["best_query_budget"], dtype=np.float64)[of_mode]
            if len(best_N):
                bins = binned_means(features_N, best_N)
                panel.plot([b.feature for b in bins], [b.mean for b in bins], "--s" if name == "LLaDA" else "-o",
                           color=colours.get(name, GREEN), markersize=4.5, linewidth=1.5, zorder=3)  # fmt: skip
            ours = correlation(findings.analyses[name], mode, feature)
        parts = [f"paper {paper[name]:+.2f}"] if name in paper else []
        parts += [] if ours is None else [f"ours {ours:+.2f}"]
        said.append(f"{name} $\\rho$ {', '.join(parts)}" if parts else name)
    if not tables:
        panel.set_xticks([])
        panel.set_xlim(0, 1)
    if mode == "dense" and feature == "length":
        for level in figure_facts().best_query_budget:
            panel.axhline(level, color=MUTED, linewidth=1, linestyle=":", zorder=1)
    panel.set_yscale("log", base=2)
    panel.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    panel.set_ylim(0.9, 18)
    panel.text(0.98, 0.96, "\n".join(said), transform=panel.transAxes, ha="right", va="top", fontsize=8, color=INK,
               bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2})  # fmt: skip
    panel.set_title(mode, loc="left", fontsize=10, color=INK)
    panel.set_xlabel(_FEATURES[feature], fontsize=9)
    panel.set_ylabel("best $K_q$", fontsize=9)
