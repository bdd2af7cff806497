"""Figure 4: where the gains come from, for PromptReps and DiffRetriever alike."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from diffretriever.evaluation.figures import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    diamond_key,
    draw_diamond,
    in_the_foot,
    panel_figure,
    png,
    quiet,
)
from diffretriever.evaluation.formats.pages import Picture
from diffretriever.evaluation.formats.tables import points
from diffretriever.studies.reproduction.exhibits.base import Findings, Shown
from diffretriever.studies.reproduction.exhibits.published import TITLES, measure_of
from diffretriever.studies.reproduction.exhibits.tables import ScoreTable
from diffretriever.studies.reproduction.report import ReproducedTable
from diffretriever.studies.reproduction.tables import AVERAGE

_PANELS = ("msmarco-dev", AVERAGE)
_SYSTEMS = {"qwen2.5": "PromptReps\nQwen2.5", "llama3": "PromptReps\nLLaMA3", "dream": "DiffRetriever\nDream",
            "llada": "DiffRetriever\nLLaDA"}  # fmt: skip
_VARIANTS = {"single": "one representation", "pooled": "several, averaged", "maxsim": "several, MaxSim"}
_CAPTION = (
    "Dense scores, zero-shot. Bars: the paper's, those of one representation and of MaxSim from its tables; its figure "
    "prints no numbers for averaged representations, so these bars are missing. Diamonds: ours."
)


class Decomposition(ScoreTable):
    """A figure whose bars are the rows of a table."""

    def show(self, findings: Findings) -> Shown:
        """Draw the bars, and show their table below."""
        measured = findings.tables(self.name)[0]
        picture = Picture(f"{self.name}.png", self.place, _CAPTION)
        return Shown([picture, *super().show(findings).blocks], {picture.file: draw_decomposition(measured)})


def draw_decomposition(measured: ReproducedTable) -> bytes:
    """Return a PNG with a panel for MS MARCO and one for the BEIR average."""
    colours = {"single": GREY, "pooled": ORANGE, "maxsim": BLUE}
    title, subtitle = "Where the gains come from: dense scoring", "bars: the paper; diamonds: ours"
    figure, panels = panel_figure(2, 2, (4.6, 2.9), title, subtitle, margin_inches=(0.3, 0.35))
    for panel, collection in zip(panels, _PANELS, strict=True):
        _draw(panel, collection, measured, colours)
    keys = [*(Patch(facecolor=colours[name], label=text) for name, text in _VARIANTS.items()), diamond_key()]
    figure.legend(handles=keys, loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    return png(figure)


def _draw(panel: Axes, collection: str, measured: ReproducedTable, colours: Mapping[str, str]) -> None:
    quiet(panel, "y")
    cells = {row.id: cell for row in measured.rows for cell in row.cells if cell.collection == collection}
    for place, system in enumerate(_SYSTEMS):
        for number, variant in enumerate(_VARIANTS):
            cell, x = cells[f"{system}-{variant}"], place + 0.27 * (number - 1)
            if cell.published is not None:
                panel.bar(x, cell.published, 0.25, color=colours[variant], zorder=2)
                in_the_foot(panel, points(cell.published), x)
            if cell.ours is not None:
                draw_diamond(panel, x, cell.ours)
    panel.set_title(TITLES[collection], loc="left", fontsize=10, color=INK)
    panel.set_ylabel(measure_of(collection), fontsize=9)
    panel.set_xticks(range(len(_SYSTEMS)), list(_SYSTEMS.values()))
    panel.tick_params(axis="x", labelsize=8)
    panel.margins(y=0.14)
