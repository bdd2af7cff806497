"""The whole paper on random weights, from checkpoints and collections to its pages, the way of reproduce.py.

By default a part of the rows, on a collection or two each: of every table at least one row for each of its backbones
among the paper's four, and 2 x 2 budgets on MS MARCO. Bootstraps have few resamples, a latency is one run, and pictures
in the reports of single evaluations and analyses are left out. With `--full` all of `python -m tools.random_paper`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.latency import __main__ as latency
from benchmarks.latency import loops
from diffretriever.core.files import read_bytes, read_text
from diffretriever.evaluation import report as evaluation_report
from diffretriever.evaluation import statistics
from diffretriever.studies.budgets.report import SECTIONS
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits import EXHIBITS, Exhibit, Findings
from diffretriever.studies.reproduction.plan import Plan, make_plan
from diffretriever.studies.reproduction.report import make_report
from diffretriever.studies.reproduction.sizes import FAMILIES
from diffretriever.studies.reproduction.tables import load_table
from tests.evaluation.tex import faults
from tools.random_paper import RandomPaperJob, run_paper

FEW = {
    "zero-shot-bm25": ("dl19", "scifact"),
    "zero-shot-diffretriever-llada-multi": ("dl19", "scifact"),
    "zero-shot-diffretriever-dream-multi": ("dl19", "scifact"),
    "zero-shot-promptreps-qwen2.5-multi": ("dl19", "scifact"),
    "zero-shot-promptreps-llama3-multi": ("dl19", "scifact"),
    "fine-tuned-diffretriever-dream-multi": ("msmarco-dev", "scifact"),
    "fine-tuned-diffretriever-llada-multi": ("msmarco-dev", "scifact"),
    "dream-multi": ("scifact",),
    "llada-multi": ("scifact",),
    "bm25": ("scifact",),
}
"""Row → collections that are run by default; rows of other tables with the same settings share their results."""
SWEPT = {"LLaDA": ("msmarco",), "Dream": ("msmarco",)}
"""Whose budgets are swept on what by default."""
SYSTEMS = {"main-indomain": (1, 4), "main-beir7": (1, 4), "beir7-modes": (2, 4), "multistep-indomain": (1, 2),
           "multistep-beir7": (2, 2), "prompt-comparison": (1, 2), "dense-baselines": (1, 2)}  # fmt: skip
"""Table with a line for each system → in how many parts it is printed, and how many of the four backbones it has."""
PAGES = ("html", "md", "tex")
BACKBONES = {"Dream", "LLaDA", "Qwen2.5", "LLaMA3"}
WHOLE = ("latency-quality", "overview", "prompts", "heat-maps-train", "query-features", "latency-scaling",
         "index-storage-figure", "heat-maps-indomain")  # fmt: skip
"""What lacks nothing with a part of the rows either."""
LACKING = ("hyperparameters", "dense-baselines")
"""What lacks something with all rows: ZeRO-2, and the published embedding models."""


def few(plan: Plan) -> Plan:
    """The rows of `FEW`, those alone."""
    tables = []
    for table, rows in plan.tables:
        kept = [
            replace(row, tasks={name: row.tasks[name] for name in FEW[row.row.id] if name in row.tasks})
            for row in rows
            if row.row.id in FEW
        ]
        tables.append((table, tuple(kept)))
    return replace(plan, tables=tuple(tables))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory, folder_of: Callable[[str], Path], full: bool) -> ReproduceJob:
    """The reproduction, its pages written, without Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffretriever.pipelines.cluster.is_ray_running", lambda: False)
        patch.setattr("diffretriever.studies.reproduction.runner.ray_session", None)
        patch.setattr("diffretriever.pipelines.ray_executor.ray_session", None)
        config = RandomPaperJob(output=tmp_path_factory.mktemp("random"))
        (config.output / "inputs").mkdir()
        for family in FAMILIES.values():
            (config.output / "inputs" / family).symlink_to(folder_of(family))
        if full:
            return run_paper(config, lambda plan: plan)
        patch.setattr(statistics, "_RESAMPLES", 10)
        patch.setattr(latency, "in_child", lambda _, __, **given: loops.measure(**given))
        patch.setattr(loops, "WARM_UP", 0)
        patch.setattr(loops, "TIMED", 1)
        patch.setattr(evaluation_report, "draw_measures", lambda *_: b"")
        for section_of in SECTIONS:
            patch.setattr(section_of, "figures", lambda *_: {})
        return run_paper(config.model_copy(update={"budgets": (1, 2)}), few, SWEPT)


@pytest.fixture(scope="module")
def findings(paper: ReproduceJob) -> Findings:
    plan = make_plan(paper)
    return Findings(paper, plan, make_report(plan, paper, {}, "c"))


def section(paper: ReproduceJob, suffix: str, exhibit: Exhibit) -> str:
    """What a page has under the title of an exhibit."""
    (_, _, rest) = read_text(paper.output / f"paper.{suffix}").rpartition(f"{exhibit.place}: {exhibit.title}")
    return re.split(r"\n## |<h2 |\\subsection", rest)[0]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
@pytest.mark.parametrize("suffix", PAGES)
def test_every_table_and_figure_is_on_every_page(paper: ReproduceJob, exhibit: Exhibit, suffix: str) -> None:
    text = section(paper, suffix, exhibit)
    assert f"python {'-m benchmarks' if 'latency' in exhibit.name else 'jobs/reproduce.py'}" in text
    for picture in re.findall(r"[\w-]+\.png", text):
        assert read_bytes(paper.output / picture).startswith(b"\x89PNG")
    if exhibit.name in SYSTEMS:
        parts, backbones = SYSTEMS[exhibit.name]
        mark = {"md": r"\| paper \|", "html": r">paper</span></td>", "tex": "& paper &"}[suffix]
        rows = parts * len(load_table(exhibit.name).rows)
        assert len(re.findall(mark, text)) == rows, "every row of the paper in every part"
        assert text.count("ours, authors, stand-in") >= parts * backbones


@pytest.mark.parametrize("name", [*SYSTEMS, "decomposition", "compressed-storage", "mini"])
def test_every_table_has_a_measured_row_for_each_of_its_backbones(findings: Findings, name: str) -> None:
    (measured,) = findings.tables(name)
    cells = {row.id: [cell for cell in row.cells if cell.ours is not None] for row in measured.rows}
    rows = [row for row in load_table(name).rows if cells[row.id]]
    assert {row.backbone for row in rows} >= {row.backbone for row in load_table(name).rows} & BACKBONES
    assert rows


def test_figures_have_ours(findings: Findings, full: bool) -> None:
    for exhibit in EXHIBITS:
        lacks = exhibit.lacks(findings)
        if exhibit.name in WHOLE or (full and exhibit.name not in LACKING):
            assert lacks == [], exhibit.name


def test_the_pages_are_well_formed(paper: ReproduceJob) -> None:
    assert faults(read_text(paper.output / "paper.tex")) == []
    for text in re.findall(r"(?:^\|.*\n)+", read_text(paper.output / "paper.md"), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()}) == 1, text
    for suffix in PAGES:
        assert "STAND-INS WERE USED" in read_text(paper.output / f"paper.{suffix}")
