"""Every table and figure of the paper, in its order, as `paper.html`, `paper.md`, `paper.tex` and pictures."""

from __future__ import annotations

from diffretriever.core.files import write_bytes
from diffretriever.evaluation.formats.pages import Block, Command, Section, write_pages
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.decomposition import Decomposition
from diffretriever.studies.reproduction.exhibits.heat_maps import HeatMaps
from diffretriever.studies.reproduction.exhibits.hyperparameters import Hyperparameters
from diffretriever.studies.reproduction.exhibits.index_storage import IndexStorage
from diffretriever.studies.reproduction.exhibits.latency_quality import LatencyQuality
from diffretriever.studies.reproduction.exhibits.latency_scaling import LatencyScaling
from diffretriever.studies.reproduction.exhibits.oracles import Oracles
from diffretriever.studies.reproduction.exhibits.overview import Overview
from diffretriever.studies.reproduction.exhibits.prompts import Prompts
from diffretriever.studies.reproduction.exhibits.query_features import QueryFeatures
from diffretriever.studies.reproduction.exhibits.tables import ScoreTable
from diffretriever.studies.reproduction.plan import Plan
from diffretriever.studies.reproduction.report import ReproductionReport, stand_in_warning
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7

__all__ = ["EXHIBITS", "Exhibit", "Findings", "Shown"]

_TITLE = "DiffRetriever: the paper's tables and figures, and ours"
_ABOUT = (
    "Every table and figure in the paper's order and layout. What the paper prints is stored as data, with its signs "
    "of significance; ours stands beside it where it was measured."
)
_INDOMAIN = ("msmarco-dev", "dl19", "dl20")

EXHIBITS: tuple[Exhibit, ...] = (
    LatencyQuality("latency-quality", "Figure 1", "quality against latency"),
    Overview("overview", "Figure 2", "how the method works"),
    Prompts("prompts", "Table 1", "retrieval prompts"),
    HeatMaps("heat-maps-train", "Figure 3", "MS MARCO train, which chose the budgets", ("msmarco-train",), 1),
    ScoreTable("main-indomain", "Table 2", "retrieval on MS MARCO and TREC DL"),
    ScoreTable("main-beir7", "Table 3", "transfer to seven BEIR collections"),
    Decomposition("decomposition", "Figure 4", "where the gains come from"),
    HeatMaps("heat-maps", "Figure 5", "MS MARCO dev and the BEIR average", ("msmarco-dev", AVERAGE), 2),
    Oracles("oracles", "Figure 6", "what per-query oracles reach"),
    QueryFeatures("query-features", "Figure 7", "which queries want more slots"),
    ScoreTable("multistep-indomain", "Table 4", "one forward pass against two, MS MARCO and TREC DL"),
    ScoreTable("multistep-beir7", "Table 5", "one forward pass against two, BEIR"),
    ScoreTable("prompt-comparison", "Table 6", "two wordings of the prompt"),
    Hyperparameters("hyperparameters", "Table 7", "fine-tuning hyperparameters"),
    LatencyScaling("latency-scaling", "Figure 8", "latency by input length and index size"),
    IndexStorage("index-storage-figure", "Figure 9", "index storage by corpus size"),
    ScoreTable("compressed-storage", "Table 8", "compressed indexes: scores and sizes"),
    ScoreTable("beir7-modes", "Table 9", "BEIR by dense, sparse and hybrid scores"),
    ScoreTable("dense-baselines", "Table 10", "beside other dense retrievers"),
    HeatMaps("heat-maps-indomain", "Figure 10", "MS MARCO dev and TREC DL", _INDOMAIN, 3),
    HeatMaps("heat-maps-beir7", "Figure 11", "the seven BEIR collections and their average", (*BEIR7, AVERAGE), 4),
    ScoreTable("mini", "Beyond the paper", "all methods on the embedded backbone"),
)


def write_paper(plan: Plan, job: ReproduceJob, report: ReproductionReport) -> list[str]:
    """Write the pages into the job's output folder; return their names."""
    findings = Findings(job, plan, report)
    sections = [Section("What this is", [*_introduction(report)])]
    for exhibit in asked_for(job):
        shown = exhibit.show(findings)
        for name, content in shown.files.items():
            write_bytes(job.output / name, content)
        blocks = [*shown.blocks, Command(exhibit.command(job))]
        sections.append(Section(f"{exhibit.place}: {exhibit.title}", blocks))
    return write_pages(job.output, "paper", _TITLE, sections)


def asked_for(job: ReproduceJob) -> list[Exhibit]:
    """Return the exhibits that the job names; all where it names none."""
    return [exhibit for exhibit in EXHIBITS if not job.tables or exhibit.name in job.tables]


def exhibit_listing(plan: Plan, job: ReproduceJob, report: ReproductionReport) -> str:
    """Return every table and figure with its command and what ours lacks, for a dry run."""
    findings = Findings(job, plan, report)
    lines = []
    for exhibit in asked_for(job):
        lines.append(f"{exhibit.place}: {exhibit.title} [{exhibit.name}]")
        lines.append(f"  command: {exhibit.command(job)}")
        lines += [f"  lacks: {reason}" for reason in exhibit.lacks(findings)] or ["  whole"]
    return "\n".join(lines)


def _introduction(report: ReproductionReport) -> list[Block]:
    return [
        _ABOUT,
        *stand_in_warning(report),
        *report.notes,
        f"Made {report.created} by",
        Command(report.command),
    ]
