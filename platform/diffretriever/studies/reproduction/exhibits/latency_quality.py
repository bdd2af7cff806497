"""Figure 1: quality against the latency of a query."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.lines import Line2D

from diffretriever.evaluation.figures import BLUE, GREY, INK, MUTED, ORANGE, RED, headed_figure, png, quiet
from diffretriever.evaluation.formats.tables import points
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.published import figure_facts, published_score
from diffretriever.studies.reproduction.tables import AVERAGE

_PASSAGES = 100_000
_TABLE = "main-beir7"
_CAPTION = (
    "BEIR-7 nDCG@10, zero-shot, hybrid, against milliseconds of encoding a query and searching 100,000 passages. "
    "Shaded spans: the ranges that the paper's text prints, at the scores of its table; dots: latencies measured here, "
    "at scores measured here or, hollow, at the paper's."
)


def latency_command(name: str, job: ReproduceJob) -> str:
    """Return the commands that measure latencies and draw an exhibit of them."""
    weights = " ".join(f"--backbones {backbone}=FOLDER" for backbone in ("Qwen2.5", "LLaMA3", "Dream", "LLaDA"))
    measure = f"python -m benchmarks.latency --device cuda {weights} --output latencies.json"
    return f"{measure} && python jobs/reproduce.py --tables {name} --latencies latencies.json --output {job.output}"


class System(NamedTuple):
    """A point of the figure."""

    method: str
    backbone: str
    representations: str

    @property
    def row(self) -> str:
        """Return the row of the main tables."""
        return f"zero-shot-{self.method}-{self.backbone}-{self.representations}".lower()


_SYSTEMS = [
    System(method, backbone, representations)
    for method, backbones in (("PromptReps", ("Qwen2.5", "LLaMA3")), ("DiffRetriever", ("Dream", "LLaDA")))
    for backbone in backbones
    for representations in ("single", "multi")
]


class LatencyQuality(Exhibit):
    """From measured latencies and measured or published scores."""

    def command(self, job: ReproduceJob) -> str:
        """Return the commands that measure and draw it."""
        return latency_command(self.name, job)

    def lacks(self, findings: Findings) -> list[str]:
        """Return the systems without a latency."""
        missing = [
            f"{s.method} {s.backbone} {s.representations}" for s in _SYSTEMS if query_latency(findings, *s) is None
        ]
        return [f"no latency with {_PASSAGES:,} passages of {', '.join(missing)}"] if missing else []

    def show(self, findings: Findings) -> Shown:
        """Draw it."""
        return self.picture(findings, _CAPTION, _drawn(findings))


def query_latency(findings: Findings, method: str, backbone: str, representations: str) -> float | None:
    """Return milliseconds of a query, zero-shot: PromptReps with several representations generates up to its cap."""
    if findings.latencies is None:
        return None
    capped = method == "PromptReps" and representations == "multi"
    return findings.latencies.of_a_query(method, backbone, "zero-shot" if capped else representations, _PASSAGES)


def _drawn(findings: Findings) -> bytes:
    colours = {"Qwen2.5": GREY, "LLaMA3": RED, "Dream": BLUE, "LLaDA": ORANGE}
    subtitle = "zero-shot, hybrid; spans: the paper's text and table, dots: measured here"
    figure = headed_figure(7.0, 4.6, "Quality against latency", subtitle)
    panel = figure.subplots()
    quiet(panel, "y")
    for system in _SYSTEMS:
        colour, many = colours[system.backbone], system.representations == "multi"
        paper = published_score(system.row, AVERAGE, "hybrid")
        assert paper is not None, "the table has these rows"
        if many:
            low, high = figure_facts().query_latency[system.method]
            panel.plot(
                [low, high], [paper, paper], color=colour, linewidth=7, solid_capstyle="butt", alpha=0.8, zorder=3
            )
            is_slow = system.method == "PromptReps"
            panel.annotate(
                f"{system.method} {system.backbone} {points(paper)}", (low if is_slow else high, paper),
                (-6 if is_slow else 6, 0), textcoords="offset points", ha="right" if is_slow else "left", va="center",
                fontsize=8.5, color=INK, zorder=5,
            )  # fmt: skip
        latency = query_latency(findings, *system)
        if latency is not None:
            own = findings.score(_TABLE, system.row, AVERAGE, "hybrid")
            panel.plot(
                latency, paper if own is None else own, "o" if many else "^", color=colour, markersize=7, zorder=6,
                markerfacecolor="white" if own is None else colour,
            )  # fmt: skip
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    panel.set_xlim(min(low, 8), max(high, 500))
    panel.set_xticks([10, 20, 50, 100, 200, 500], ["10", "20", "50", "100", "200", "500"])
    panel.minorticks_off()
    panel.set_xlabel("milliseconds a query, encoding and search", fontsize=9.5)
    panel.set_ylabel("BEIR-7 nDCG@10", fontsize=9.5)
    panel.margins(y=0.18)
    if findings.latencies is not None:
        keys = [Line2D([], [], color=colour, linewidth=5, label=name) for name, colour in colours.items()]
        for marker, text in (("^", "one representation"), ("o", "several")):
            keys.append(Line2D([], [], color=MUTED, marker=marker, linestyle="", markersize=7, label=text))
        panel.legend(
            handles=keys, frameon=False, fontsize=8.5, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16)
        )
    return png(figure)
