"""What published rows are run with: the authors' settings, the paper's text, and what tells their results apart."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.presets import load_retriever
from diffretriever.protocols import Setup, protocols
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.retriever import Bm25Retriever, ContentWordsConfig, TextConfig
from diffretriever.studies.reproduction.plan import Task, make_plan
from diffretriever.studies.reproduction.protocols import set_up
from diffretriever.studies.reproduction.report import listing
from diffretriever.studies.reproduction.tables import PAPER_TABLES, load_table
from tests.studies.reproduction.cases import JobMaker

ROWS = [row for name in PAPER_TABLES for row in load_table(name).rows if row.preset is not None]


def setup_of(name: str, protocol: str | None) -> Setup:
    row = next(row for row in ROWS if row.id == name)
    assert row.preset is not None
    return set_up(row.model_copy(update={"protocol": protocol}), load_retriever(row.preset))


def config_of(name: str, protocol: str) -> Any:
    return setup_of(name, protocol).config


@pytest.mark.parametrize("protocol", protocols())
def test_every_row_can_be_run_under_every_protocol(protocol: str) -> None:
    for row in ROWS:
        setup = setup_of(row.id, protocol)
        EvaluateJob.model_validate({"index": "i", "collection": "c", "output": "o", **setup.search})
        without = setup_of(row.id, None)
        assert (setup.config.method, setup.config.modes) == (without.config.method, without.config.modes)


def test_the_authors_settings_zero_shot() -> None:
    whole = TextConfig(
        title_join="period-space", max_query_tokens=256, max_passage_tokens=256, length_semantics="total"
    )
    for kind, budget, maxsim in (("multi", "q4p16", {"maxsim": "sum-floored"}), ("single", "q1p1", {})):
        setup = setup_of(f"zero-shot-diffretriever-dream-{kind}", "authors")
        config: Any = setup.config
        assert (config.prompt.colon, str(config.budget)) == (True, budget)
        assert (config.content_words, config.text) == (ContentWordsConfig(subwords=True), whole)
        assert (config.sparse_topk, config.sparse_rounding, config.stop_truncation) == (128, "trunc100", "special")
        assert setup.search == {"score_dtype": "bfloat16-legacy", **maxsim}
    multi, single = (config_of(f"zero-shot-promptreps-llama3-{kind}", "authors") for kind in ("multi", "single"))
    assert (multi.stop, multi.sparse_topk, multi.sparse_rounding, multi.text) == ("cap-then-cut", 256, "none", whole)
    assert single.sparse_rounding == "trunc100"


def test_the_authors_settings_fine_tuned() -> None:
    config = config_of("fine-tuned-diffretriever-llada-multi", "authors")
    assert (config.sparse_topk, config.sparse_rounding, config.stop_truncation) == (256, "round100", "none")
    lengths = (config.text.max_query_tokens, config.text.max_passage_tokens, config.text.length_semantics)
    assert lengths == (32, 156, "text")
    assert config.backbone.adapter is not None
    assert config_of("fine-tuned-promptreps-qwen2.5-multi", "authors").stop == "cap"
    # Rows of a table without regimes are fine-tuned where they have an adapter.
    assert config_of("dream-multi", "authors").sparse_rounding == "round100"


def test_the_papers_text() -> None:
    zero_shot, tuned = (config_of(f"{kind}-diffretriever-dream-multi", "paper") for kind in ("zero-shot", "fine-tuned"))
    assert zero_shot == load_retriever("diffretriever-dream"), "the presets are the paper's, zero-shot"
    assert (tuned.text.max_query_tokens, tuned.text.max_passage_tokens) == (32, 156)
    assert tuned.prompt.colon, "the released adapters know no other prompt"
    assert setup_of("zero-shot-diffretriever-dream-multi", "paper").search == {}


def test_bm25_reads_no_titles() -> None:
    for protocol in protocols():
        assert setup_of("zero-shot-bm25", protocol).config == Bm25Retriever(title_join="none")
    (ours,) = [row for row in load_table("mini").rows if row.preset == "bm25"]
    assert set_up(ours, load_retriever("bm25")).config == Bm25Retriever(), "the table that is ours keeps them"


def test_results_of_two_protocols_lie_apart(job: JobMaker) -> None:
    plan = make_plan(job("main-beir7", "mini", protocol=()))
    assert [(table.id, table.protocol) for table, _ in plan.tables] == [
        ("main-beir7", "authors"), ("main-beir7", "paper"), ("mini", None),
    ]  # fmt: skip
    found = [row.tasks["scifact"] for row in plan.rows() if row.row.preset == "bm25"]
    tasks = [task for task in found if isinstance(task, Task)]
    assert [str(task.results.parent.name) for task in tasks] == ["authors", "paper", "evaluations"]
    authors, paper, ours = tasks
    assert authors.index == paper.index != ours.index, "the same retriever is encoded once"
    text = listing(plan)
    assert "Protocol authors: the settings of the authors' code" in text
    assert "Protocol paper: the paper's text taken literally" in text


def test_one_protocol_is_chosen(job: JobMaker) -> None:
    plan = make_plan(job("main-beir7", protocol="folded"))
    assert [table.protocol for table, _ in plan.tables] == ["folded"]
    with pytest.raises(ValueError, match=r"--protocol: no protocol 'autors'\. Did you mean 'authors'"):
        make_plan(job("main-beir7", protocol="autors"))
