"""A budget sweep on a local Ray: every cell is the search with that budget, and nothing is ever done twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.collections import Run, read_run, write_run
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever, read_selection
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.sweep import SweepJob, SweepSummary, encoder_fingerprint
from diffretriever.search import open_searcher
from diffretriever.search.batch import kept_hits
from diffretriever.studies.budgets import sweep
from diffretriever.studies.budgets.measuring import measure_sweep, select_budget, sweep_tables
from diffretriever.studies.budgets.sweep import sweep_budgets
from diffretriever.studies.budgets.sweep_files import Outcomes, read_queries
from diffretriever.vectors.hits import Hits
from tests.locations import local
from tests.studies.budgets.sweep_cases import MODES, TEXTS, make_job, runs, stamps

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
Lines = list[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> SweepJob:
    return make_job(tmp_path_factory.mktemp("sweep"), checkpoint)


@pytest.fixture(scope="module")
def summary(job: SweepJob, cluster: None) -> SweepSummary:
    return sweep_budgets(job, "python jobs/sweep_budgets.py", print)


@pytest.fixture
def copy(job: SweepJob, summary: SweepSummary, tmp_path: Path) -> SweepJob:
    """A finished sweep of its own, to be changed."""
    shutil.copytree(local(job.output), tmp_path / "swept")
    return job.model_copy(update={"output": tmp_path / "swept"})


def test_every_cell_is_the_search_with_its_budget(job: SweepJob, summary: SweepSummary) -> None:
    # One pass over each index serves all K_q and both splits.
    assert (summary.passages, summary.searched, summary.found, summary.passes) == (40, 8, 0, 2)
    for passage in job.passage_budgets:
        place = str(job.output / "indexes" / f"p{passage}")
        searcher = open_searcher(place, SearchOptions(index=place))
        assert searcher.encoder is not None
        assert isinstance(searcher.encoder.config, MaskedRetriever)
        assert searcher.encoder.config.budget == Budget(1, passage)
        for query in job.query_budgets:
            for split, texts in TEXTS.items():
                budgets = [query] * len(texts)
                found = dict(searcher.search([*texts.values()], k=101, budgets=budgets))
                expected = {mode: dict(zip(texts, hits, strict=True)) for mode, hits in found.items()}
                for mode, hits in expected.items():
                    run = read_run(job.output / split / "runs" / str(Budget(query, passage)) / f"{mode}.trec")
                    own = kept_hits([*texts], Hits.of([hits[q] for q in texts]), 100, exclude_self=True)
                    assert [[*run.get(name, {}).items()] for name in texts] == list(own)


def test_runs_are_as_deep_as_the_measures_need(job: SweepJob) -> None:
    measures = ("MRR@10", "R@200"), ("nDCG@10",), ("AP",)
    assert [sweep._depth(job.model_copy(update={"measures": names})) for names in measures] == [200, 100, 1000]


def test_the_same_command_does_nothing_again(job: SweepJob, summary: SweepSummary) -> None:
    patterns = ("*/runs/*/*", "*/encoded/*", "indexes/*/*")
    before = [stamps(local(job.output), pattern) for pattern in patterns]
    again = sweep_budgets(job, "again", print)
    assert (again.searched, again.found, again.passes) == (0, 8, 0)
    assert [stamps(local(job.output), pattern) for pattern in patterns] == before


def test_a_sweep_cut_off_goes_on(copy: SweepJob) -> None:
    finished, written = runs(local(copy.output)), list[Path]()
    for split in TEXTS:
        shutil.rmtree(local(copy.output) / split / "runs")

    def dying(path: Path, parts: Iterable[Run], tag: str) -> None:
        if len(written) == 4 * 3 + 2:
            raise KeyboardInterrupt
        written.append(path)
        write_run(path, parts, tag)

    with patch.object(sweep, "write_run", dying), pytest.raises(KeyboardInterrupt):
        sweep_budgets(copy, "cut", print)
    resumed = sweep_budgets(copy, "resumed", print)
    assert (resumed.searched, resumed.found, resumed.passes) == (5, 3, 2)
    assert runs(local(copy.output)) == finished


def test_one_budget_more_is_one_search_more(copy: SweepJob) -> None:
    before, finished = stamps(local(copy.output), "*/encoded/*"), runs(local(copy.output))
    indexes = stamps(local(copy.output), "indexes/*/finished.json")
    lines = Lines()
    more = sweep_budgets(copy.model_copy(update={"query_budgets": (1, 2, 3)}), "more", lines.append)
    assert (more.searched, more.found, more.passes) == (4, 8, 2)
    assert stamps(local(copy.output), "*/encoded/*").items() > before.items()
    assert {text for text in lines if "encoded with" in text} == {
        "  5 queries of test encoded with K_q = 2",
        "  2 queries of train encoded with K_q = 2",
    }, "in whichever order the encoders finish"
    assert stamps(local(copy.output), "indexes/*/finished.json") == indexes, "no passage was encoded"
    assert runs(local(copy.output)).items() > finished.items()


def test_cells_of_an_index_that_changed_are_searched_again(copy: SweepJob) -> None:
    PassageIndex.open(str(copy.output / "indexes" / "p2")).delete(["p5"])
    again = sweep_budgets(copy, "again", print)
    assert (again.searched, again.found) == (4, 4)
    assert all("p5" not in hits for hits in read_run(copy.output / "test" / "runs" / "q1p2" / "dense.trec").values())


def test_measures_and_selection(copy: SweepJob) -> None:
    manifest = measure_sweep(copy)
    chosen = select_budget(copy, manifest)
    assert chosen is not None
    assert chosen == read_selection(copy.output / "selection.json")
    assert (chosen.split, chosen.mode, chosen.queries) == ("train", "hybrid", 2)
    cells = {b: Outcomes.read(copy.output, "train", "hybrid", chosen.measure).at(b).mean() for b in chosen.grid}
    assert chosen.grid == cells
    best = min(cells, key=lambda budget: (-cells[budget], budget.query + budget.passage, budget.query))
    assert (chosen.budget, chosen.value) == (best, cells[best])
    assert chosen.fingerprint == encoder_fingerprint(PassageIndex.open(str(copy.output / "indexes" / "p2")).manifest)
    assert sweep_tables(copy.output, manifest).count("*") == len(TEXTS) * len(MODES)
    path = copy.output / "selection.json"
    retriever = load_retriever("diffretriever-llada", copy.backbone, path)
    assert isinstance(retriever, MaskedRetriever)
    assert retriever.budget == best
    with pytest.raises(ValueError, match=rf"was made for {copy.backbone}, this retriever has minilm.*{best}"):
        load_retriever("diffretriever-minilm-untrained", budget=path)


def test_subwords_of_the_queries_are_kept(job: SweepJob, summary: SweepSummary) -> None:
    place = str(job.output / "indexes" / "p1")
    searcher = open_searcher(place, SearchOptions(index=place))
    assert searcher.encoder is not None
    for split, texts in TEXTS.items():
        kept = read_queries(job.output, split)
        assert {query: swept.text for query, swept in kept.items()} == texts
        for query, text in texts.items():
            tokenizer = searcher.encoder.preparer.vocabulary.tokenizer
            assert [*kept[query].token_ids] == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_mistakes_are_named_before_anything_runs(copy: SweepJob, tmp_path: Path) -> None:
    before = (local(copy.output) / "sweep.json").read_bytes()
    with pytest.raises(ValueError, match=r"holds another sweep.*\n  max_queries: None != 2\ngive another --output"):
        sweep_budgets(copy.model_copy(update={"max_queries": 2}), "sampled", print)
    tail = tmp_path / "tail.yaml"
    tail.write_text(f"method: masked\nbackbone: {{source: {copy.backbone}}}\ntail_length: 1\n", "utf-8")
    with pytest.raises(ValueError, match=r"retriever: masked .* != masked .*"):
        sweep_budgets(copy.model_copy(update={"retriever": str(tail)}), "other", print)
    assert (local(copy.output) / "sweep.json").read_bytes() == before
    with pytest.raises(ValueError, match="bm25: the bm25 method has no slots"):
        sweep_budgets(copy.model_copy(update={"retriever": "bm25", "backbone": None}), "other", print)
    with pytest.raises(ValueError, match=r"has no split 'tset'\. Did you mean 'test'"):
        sweep_budgets(copy.model_copy(update={"splits": ("tset",)}), "other", print)
    with pytest.raises(ValueError, match="--select-split dev is not swept: give one of test"):
        SweepJob(collection="c", output=tmp_path, splits=("test",), select_split="dev")
