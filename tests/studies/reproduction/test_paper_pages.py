"""The pages in the paper's layout, and what a dry run says of every table and figure."""

from __future__ import annotations

from diffretriever.studies.reproduction.exhibits import EXHIBITS, exhibit_listing
from diffretriever.studies.reproduction.plan import make_plan
from diffretriever.studies.reproduction.report import make_report
from diffretriever.studies.reproduction.tables import load_table
from tests.studies.reproduction.cases import JobMaker


def test_a_dry_run_names_every_table_and_figure_with_its_command_and_what_it_lacks(job: JobMaker) -> None:
    config = job(dry_run=True)
    plan = make_plan(config)
    text = exhibit_listing(plan, config, make_report(plan, config, {}, "c"))
    places = [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")]
    papers = [f"Table {n}" for n in range(1, 11)] + [f"Figure {n}" for n in range(1, 12)]
    assert sorted(places) == sorted([*papers, "Beyond the paper"])
    for exhibit in EXHIBITS:
        (_, said) = text.split(f"[{exhibit.name}]\n")
        command, reason, *_ = said.splitlines()
        assert command.startswith("  command: python "), exhibit.name
        assert f"--tables {exhibit.name}" in command
        assert reason.startswith("  lacks: ") or reason == "  whole"
    assert f"{len(load_table('mini').rows)} results: not run yet" in text
    assert "command: python -m benchmarks.latency --device cuda --backbones Qwen2.5=FOLDER" in text


def test_missing_weights_do_not_hide_missing_collections(job: JobMaker) -> None:
    config = job("prompt-comparison", dry_run=True)
    plan = make_plan(config)
    text = exhibit_listing(plan, config, make_report(plan, config, {}, "c"))
    assert "lacks: 6 results: no weights for meta-llama/Meta-Llama-3-8B-Instruct" in text
    for name in ("msmarco-dev", "dl19", "dl20"):
        assert f"lacks: no collection {name}: give --collections msmarco=PATH" in text
