"""Figure 8: encoding by length of the input, search by size of the index."""

from __future__ import annotations

from matplotlib.axes import Axes

from diffretriever.evaluation.figures import BASE, BLUE, GRID, INK, MUTED, ORANGE, panel_figure, png, quiet
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.latency_quality import latency_command
from diffretriever.studies.reproduction.exhibits.published import figure_facts
from diffretriever.studies.reproduction.latencies import Latencies, Point

_METHODS = {"PromptReps": ("Qwen2.5", "LLaMA3"), "DiffRetriever": ("Dream", "LLaDA")}
_LENGTHS, _SIZES = (16, 512), (1_000, 1_000_000)
_CAPTION = (
    "Above: encoding against the length of the input in tokens. Below: search against the number of passages. Bands "
    "and crosses: what the paper's text prints, about; lines: measured here, hollow marks for one representation, "
    "filled ones for several (4 generated tokens, and the fixed budgets of Dream and LLaDA)."
)


class LatencyScaling(Exhibit):
    """From measured latencies."""

    def command(self, job: ReproduceJob) -> str:
        """Return the commands that measure and draw it."""
        return latency_command(self.name, job)

    def lacks(self, findings: Findings) -> list[str]:
        """Return the lines that were not measured."""
        found = findings.latencies
        missing = [
            f"{method} {backbone} {kind}"
            for method, backbones in _METHODS.items()
            for backbone in backbones
            for kind in ("single", "multi")
            if found is None
            or not (found.points("encoding", method, backbone, kind) and found.points("search", method, backbone, kind))
        ]
        return [f"not measured: {', '.join(missing)}"] if missing else []

    def show(self, findings: Findings) -> Shown:
        """Draw four panels."""
        device = [] if findings.latencies is None else [f"Measured on {findings.latencies.device}."]
        return self.picture(findings, _CAPTION, draw_scaling(findings.latencies), *device)


def draw_scaling(latencies: Latencies | None) -> bytes:
    """Return a PNG; without latencies it has what the paper's text prints."""
    title, subtitle = (
        "Latency by input length and by index size",
        "bands and crosses: the paper's text; lines: measured here",
    )
    figure, panels = panel_figure(4, 2, (3.9, 2.6), title, subtitle, margin_inches=(0.2, 0.6))
    for column, (method, backbones) in enumerate(_METHODS.items()):
        encoding, search = panels[column], panels[2 + column]
        _draw_bands(encoding, method)
        _draw_search(search, method)
        for backbone in backbones:
            for kind in ("single", "multi"):
                if latencies is not None:
                    label = f"{backbone} {kind}"
                    _draw_line(encoding, latencies.points("encoding", method, backbone, kind), backbone, label)
                    _draw_line(search, latencies.points("search", method, backbone, kind), backbone, label)
        encoding.set_title(f"{method}: encoding", loc="left", fontsize=10)
        search.set_title(f"{method}: search", loc="left", fontsize=10)
        encoding.set_xlabel("tokens of the input", fontsize=9)
        search.set_xlabel("passages", fontsize=9)
        search.set_xscale("log")
        for panel in (encoding, search):
            panel.set_ylabel("ms", fontsize=9)
            panel.set_ylim(bottom=0)
        if latencies is not None:
            search.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return png(figure)


def _draw_bands(panel: Axes, method: str) -> None:
    quiet(panel, "y")
    ranges = figure_facts().encoding_latency[method]
    same = len(set(ranges.values())) == 1
    for kind, (low, high) in ranges.items():
        panel.fill_between(
            _LENGTHS, low, high, color=GRID if kind == "single" else BASE, alpha=0.55, zorder=1, linewidth=0
        )
        if not same or kind == "multi":
            text = "paper: one and several" if same else f"paper: {'one' if kind == 'single' else 'several'}"
            panel.annotate(text, (_LENGTHS[1], (low + high) / 2), (-4, 0), textcoords="offset points", ha="right",
                           va="center", fontsize=8, color=MUTED, zorder=6,
                           bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # fmt: skip
    panel.set_xlim(*_LENGTHS)
    panel.set_ylim(0, max(high for _, high in ranges.values()) * 1.25)


def _draw_search(panel: Axes, method: str) -> None:
    quiet(panel, "y")
    said = figure_facts().search_latency
    crosses = {"fastest": "fastest, one vector"}
    if method == "DiffRetriever":
        crosses["slowest"] = "slowest, Dream with several"
    for name, text in crosses.items():
        panel.plot(_SIZES[1], said[name], "x", color=INK, markersize=7, zorder=4)
        panel.annotate(f"paper: {text} ≈{said[name]:g}", (_SIZES[1], said[name]), (-8, 0), textcoords="offset points",
                       ha="right", va="center", fontsize=8, color=MUTED, zorder=6,
                           bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # fmt: skip
    panel.set_xlim(_SIZES[0], _SIZES[1] * 1.5)
    panel.set_ylim(0, 22)


def _draw_line(panel: Axes, line: list[Point], backbone: str, label: str) -> None:
    if not line:
        return
    colour, marker = (BLUE, "o") if backbone in ("Qwen2.5", "Dream") else (ORANGE, "s")
    filled = colour if label.endswith("multi") else "white"
    style = "-" if label.endswith("multi") else "--"
    xs, times = [point.x for point in line], [point.ms for point in line]
    panel.plot(
        xs, times, style, marker=marker, color=colour, markerfacecolor=filled, markersize=5, label=label, zorder=3
    )
    panel.set_ylim(top=max(panel.get_ylim()[1], 1.15 * max(times)))
