"""Figure 6: what oracles of each query's budget reach, beside the fixed budget and fine-tuning."""

from __future__ import annotations

from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from diffretriever.evaluation.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    diamond_key,
    draw_diamond,
    in_the_foot,
    panel_figure,
    png,
    quiet,
)
from diffretriever.evaluation.formats.tables import points
from diffretriever.studies.reproduction.exhibits.analyses import shown_names
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.published import (
    ANALYSES,
    BACKBONES,
    TITLES,
    figure_facts,
    measure_of,
    published_score,
    table_of,
)
from diffretriever.studies.reproduction.tables import AVERAGE

Bars: TypeAlias = dict[str, float]
"""Bar → height."""

_PANELS = ("msmarco-dev", AVERAGE)
_BARS = {"fixed": "fixed budget", "query": "oracle of $K_q$", "passage": "oracle of $K_p$", "joint": "oracle of both",
         "fine-tuned": "fine-tuned, fixed budget"}  # fmt: skip
_TUNED_MODE = "dense"
"""The paper reports dense scores of fine-tuned models; it does not say which its figure has."""
_CAPTION = (
    "Zero-shot oracles of each query's budget by hybrid scores, and fine-tuning at the fixed budget by dense scores. "
    "Bars: the paper's tables; the oracle of both is what the text says, the fine-tuned score and .05, .05, .03 and "
    ".07, hatched because it is rounded; the text has no figures for the other two oracles. Diamonds: ours."
)


class Oracles(Exhibit):
    """From analyses, and from the fine-tuned rows of the main tables."""

    flags = f"--tables main-indomain --tables beir7-modes {ANALYSES} --collections-root COLLECTIONS"

    def lacks(self, findings: Findings) -> list[str]:
        """Return the bars without one of ours."""
        missing = []
        for collection in _PANELS:
            for name in BACKBONES:
                ours = our_bars(findings, name, collection)
                if "joint" not in ours:
                    missing.append(f"{name}: no analysis of {TITLES[collection]} (jobs/analyse_budgets.py)")
                if "fine-tuned" not in ours:
                    missing.append(
                        f"{name}: no fine-tuned score on {TITLES[collection]} (table {table_of(collection)})"
                    )
        return missing

    def show(self, findings: Findings) -> Shown:
        """Draw a panel for each set of collections."""
        colours = dict(zip(_BARS, (GREY, BLUE, RED, GREEN, ORANGE), strict=True))
        title, subtitle = (
            "What per-query oracles reach",
            "bars: the paper, hatched where only its text says so; diamonds: ours",
        )
        names = shown_names(findings.analyses, BACKBONES)
        figure, panels = panel_figure(2, 2, (1.0 + 1.9 * len(names), 3.0), title, subtitle, margin_inches=(0.3, 0.5))
        for panel, collection in zip(panels, _PANELS, strict=True):
            _draw(panel, collection, names, findings, colours)
        keys = [*(Patch(facecolor=colours[bar], label=text) for bar, text in _BARS.items()), diamond_key()]
        figure.legend(handles=keys, loc="outside lower left", ncols=3, frameon=False, fontsize=8.5)
        return self.picture(findings, _CAPTION, png(figure))


def _draw(panel: Axes, collection: str, names: list[str], findings: Findings, colours: dict[str, str]) -> None:
    quiet(panel, "y")
    for place, name in enumerate(names):
        paper, ours = published_bars(name, collection), our_bars(findings, name, collection)
        for number, bar in enumerate(_BARS):
            x = place + 0.17 * (number - 2)
            if bar in paper:
                said = bar == "joint"
                panel.bar(
                    x, paper[bar], 0.16, facecolor="white" if said else colours[bar], edgecolor=colours[bar],
                    hatch="////" if said else "", zorder=2,
                )  # fmt: skip
                text = f"≈{points(paper[bar])[:-1]}" if said else points(paper[bar])
                in_the_foot(panel, text, x)
            if bar in ours:
                draw_diamond(panel, x, ours[bar])
    panel.set_title(TITLES[collection], loc="left", fontsize=10, color=INK)
    panel.set_ylabel(measure_of(collection), fontsize=9)
    panel.set_xticks(range(len(names)), names)
    panel.margins(y=0.14)


def published_bars(name: str, collection: str) -> Bars:
    """Return the bars that the paper's tables and text give."""
    if name not in BACKBONES:
        return {}
    row = f"diffretriever-{name.lower()}-multi"
    fixed = published_score(f"zero-shot-{row}", collection, "hybrid")
    tuned = published_score(f"fine-tuned-{row}", collection, _TUNED_MODE)
    assert fixed is not None, "the main tables have these rows"
    assert tuned is not None, "the main tables have these rows"
    return {
        "fixed": fixed,
        "joint": tuned + figure_facts().oracle_over_fine_tuned[collection][name],
        "fine-tuned": tuned,
    }


def our_bars(findings: Findings, name: str, collection: str) -> Bars:
    """Return the bars that were measured here."""
    analysis = findings.analyses.get(name)
    gains = {} if analysis is None else analysis.gains(collection, "hybrid")
    bars = {side: oracle for side, (_, oracle) in gains.items()}
    if gains:
        bars["fixed"] = gains["joint"][0]
    tuned = findings.score(
        table_of(collection), f"fine-tuned-diffretriever-{name.lower()}-multi", collection, _TUNED_MODE
    )
    return bars if tuned is None else {**bars, "fine-tuned": tuned}
