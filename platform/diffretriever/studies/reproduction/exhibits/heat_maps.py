"""Figures 3, 5, 10 and 11: heat maps of budgets, a panel for each backbone and collection."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from diffretriever.evaluation.figures import GRID, INK, MUTED, panel_figure, png
from diffretriever.evaluation.formats.tables import points
from diffretriever.schemas.budget import Budget
from diffretriever.studies.budgets.grids import draw_grid, frame_grid
from diffretriever.studies.reproduction.exhibits.analyses import Analysis, shown_names
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.published import (
    ANALYSES,
    BACKBONES,
    TITLES,
    figure_facts,
    measure_of,
    published_score,
)

_MODE = "hybrid"
_BUDGETS: tuple[int, ...] = (1, 2, 4, 8, 16)
_TRAIN = "msmarco-train"
_CAPTION = (
    "Zero-shot hybrid scores by numbers of slots, K_q across and K_p upwards. A full star marks the best cell of ours, "
    "a frame the fixed budget, a hollow star the best cell that the paper's text names. Where nothing of ours is "
    "there, the panel has what the paper's text and tables print: the score at the fixed budget, and that star."
)


class HeatMaps(Exhibit):
    """Panels of several backbones, from sweeps that were analysed."""

    flags = ANALYSES

    def __init__(self, name: str, place: str, title: str, collections: tuple[str, ...], columns: int) -> None:
        """Name the panels."""
        super().__init__(name, place, title)
        self._collections, self._columns = collections, columns

    def lacks(self, findings: Findings) -> list[str]:
        """Return the panels without means of ours."""
        missing = []
        for name in shown_names(findings.analyses, BACKBONES):
            analysis = findings.analyses.get(name)
            without = [c for c in self._collections if analysis is None or analysis.grid(c, _MODE) is None]
            if without:
                missing.append(f"{name}: no sweep of {', '.join(TITLES[c] for c in without)}")
        return [f"{reason} (jobs/sweep_budgets.py, then jobs/analyse_budgets.py)" for reason in missing]

    def show(self, findings: Findings) -> Shown:
        """Draw all panels."""
        caption = f"{self.title[0].upper()}{self.title[1:]}. {_CAPTION}"
        return self.picture(findings, caption, self._drawn(findings))

    def _drawn(self, findings: Findings) -> bytes:
        names = shown_names(findings.analyses, BACKBONES)
        rows = -(-len(self._collections) // self._columns)
        # One collection alone: the backbones stand side by side.
        columns = len(names) if len(self._collections) == 1 else self._columns
        title = f"Hybrid scores by budget: {self.title}"
        subtitle = "★ best of ours · ☆ best by the paper's text · framed: the fixed budget"
        n_panels = len(names) * (1 if len(self._collections) == 1 else rows * self._columns)
        figure, panels = panel_figure(n_panels, columns, (3.35, 2.85), title, subtitle)
        for number, panel in enumerate(panels):
            name = names[number] if len(self._collections) == 1 else names[number // (rows * columns)]
            place = 0 if len(self._collections) == 1 else number % (rows * columns)
            if place >= len(self._collections):
                panel.set_visible(False)
                continue
            _draw(panel, name, self._collections[place], findings.analyses.get(name))
            panel.set_ylabel("$K_p$" if number % columns == 0 else "", fontsize=9.5, color=INK)
            panel.set_xlabel("$K_q$", fontsize=9.5, color=INK)
        return png(figure)


def _draw(panel: Axes, name: str, collection: str, analysis: Analysis | None) -> None:
    facts = figure_facts()
    grid = None if analysis is None else analysis.grid(collection, _MODE)
    if analysis is None or grid is None:
        _draw_published(panel, name, collection)
        query_budgets, passage_budgets, spread = _BUDGETS, _BUDGETS, None
    else:
        draw_grid(panel, grid, analysis.report)
        query_budgets, passage_budgets = analysis.report.query_budgets, analysis.report.passage_budgets
        spread = grid.spread
    star = facts.best_cells.get(name, {}).get(collection)
    if star is not None and star.query in query_budgets and star.passage in passage_budgets:
        x, y = query_budgets.index(star.query), passage_budgets.index(star.passage)
        panel.plot(x + 0.33, y + 0.3, "*", color=INK, markerfacecolor="white", markersize=8, markeredgewidth=0.9)
    panel.set_title(f"{name} · {TITLES[collection]}", loc="left", fontsize=9.5, color=INK)
    printed = facts.spread.get(name) if collection == "msmarco-dev" else None
    panel.set_title(_spreads(spread, printed) or measure_of(collection), loc="right", fontsize=8, color=MUTED)


def _spreads(ours: float | None, paper: float | None) -> str:
    parts = [] if ours is None else [points(ours)]
    parts += [] if paper is None else [f"paper {paper:.2f}".replace("0.", ".")]
    return f"Δ {', '.join(parts)}" if parts else ""


def _draw_published(panel: Axes, name: str, collection: str) -> None:
    fixed = figure_facts().fixed.get(name)
    for a, query in enumerate(_BUDGETS):
        for b, passage in enumerate(_BUDGETS):
            panel.add_patch(Rectangle((a - 0.47, b - 0.46), 0.94, 0.92, facecolor="#f5f6f8", edgecolor=GRID))
            if fixed == Budget(query, passage):
                panel.add_patch(Rectangle((a - 0.47, b - 0.46), 0.94, 0.92, fill=False, edgecolor=INK, linewidth=1.8))
                score = _score(name, collection)
                if score is not None:
                    panel.text(a, b, points(score), ha="center", va="center", fontsize=8, color=INK)
    panel.set_xlim(-0.5, len(_BUDGETS) - 0.5)
    panel.set_ylim(-0.5, len(_BUDGETS) - 0.5)
    frame_grid(panel, _BUDGETS, _BUDGETS)


def _score(name: str, collection: str) -> float | None:
    if collection == _TRAIN or name not in BACKBONES:
        return None
    return published_score(f"zero-shot-diffretriever-{name.lower()}-multi", collection, _MODE)
