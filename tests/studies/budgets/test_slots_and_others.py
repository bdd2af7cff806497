"""The report's parts that need vectors or other systems' runs, against plain calculations."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from pyarrow import feather

from diffretriever.evaluation.sweeps import Outcomes, available_features, open_splits, query_features
from diffretriever.schemas.selector import FitSelectorJob
from diffretriever.studies.budgets.against import AgainstSection, AgainstTest
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.budgets.features import FeatureSection
from diffretriever.studies.budgets.report import AnalysisReport, analyse
from diffretriever.studies.budgets.selector_report import report_selector
from diffretriever.studies.budgets.slots import SlotSection
from tests.studies.budgets.made_up import make_sweep
from tests.studies.budgets.made_up_vectors import add_vectors, passage_vectors, query_vectors, scores, vectors

N = 30


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_sweep(tmp_path_factory.mktemp("sweeps"), "one", n=N)
    add_vectors(folder, "test", N)
    # The other system ranks query i's passage at place i % 3 + 1, and does not know the last query.
    ranked = {i: [f"x{j}" for j in range(i % 3)] + [f"d{i % 20}"] for i in range(N - 1)}
    lines = [f"q{i} Q0 {p} 1 {9 - r} bm25" for i, passages in ranked.items() for r, p in enumerate(passages)]
    (folder / "bm25.trec").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(sweep: Path) -> AnalysisReport:
    return analyse(job(sweep, against=(f"BM25={sweep / 'bm25.trec'}",), qrels=(sweep / "test/qrels.tsv",)), "x")


def job(sweep: Path, **changes: object) -> AnalyseBudgetsJob:
    values: dict[str, object] = {
        "sweeps": (sweep / "test",), "budget": "q4p4", "mode": "dense", "output": sweep / "report",
    }  # fmt: skip
    return AnalyseBudgetsJob.model_validate(values | changes)


def test_cosines_are_those_of_the_stored_vectors(made: AnalysisReport, sweep: Path) -> None:
    found = {(s.side, s.slots): s for s in made.section(SlotSection).similarities}
    assert set(found) == {("query", 4), ("passage", 4)}, "one slot has no pair"
    for (side, _), texts in zip(found, (query_vectors(N, 4), passage_vectors(4)), strict=True):
        pairs = [float(text[i] @ text[j]) for text in texts for i, j in combinations(range(4), 2)]
        assert found[side, 4].cosine == pytest.approx(np.mean(pairs), abs=1e-3)
        assert found[side, 4].texts == len(texts)
    page = (sweep / "report/report.md").read_text("utf-8")
    assert "](slots.png)" in page
    assert "slot confidence" in page


def test_wins_are_counted_over_the_top_ranked_passages(made: AnalysisReport) -> None:
    queries, passages = query_vectors(N, 4), passage_vectors(4)
    counts = np.zeros((4, 4))
    for query, row in zip(queries, scores(queries, passages), strict=True):
        for passage in np.argsort(-row)[:10]:
            counts[range(4), (query @ passages[passage].T).argmax(axis=1)] += 1
    (wins,) = made.section(SlotSection).wins
    assert (wins.queries, wins.passages) == (N, 10 * N)
    assert np.array(wins.shares) == pytest.approx(counts / counts.sum(axis=1, keepdims=True))
    assert 1 < wins.in_use <= 4


def test_another_system_is_measured_and_tested(made: AnalysisReport, sweep: Path) -> None:
    theirs = np.array([1 / np.log2(i % 3 + 2) for i in range(N - 1)] + [0.0])
    values = Outcomes.read(sweep, "test", "dense", "nDCG@10").values_ABQ
    ours = {"fixed": values[1, 1], "query": values[:, 1].max(axis=0), "joint": values.max(axis=(0, 1))}
    found: dict[str, AgainstTest] = {test.side: test for test in made.section(AgainstSection).against}
    assert set(found) == {"fixed", "query", "passage", "joint"}
    for side, expected in ours.items():
        test = found[side]
        assert test.system_mean == pytest.approx(theirs.mean())
        assert test.difference == pytest.approx((expected - theirs).mean())
        assert test.t_test == pytest.approx(scipy.stats.ttest_rel(expected, theirs).pvalue)
        assert test.t_test_holm >= test.t_test
        assert test.interval[0] < test.difference < test.interval[1]
    assert "### Against other systems" in (sweep / "report/report.md").read_text("utf-8")


def test_what_the_first_two_slots_say_of_a_query(sweep: Path) -> None:
    (split,) = open_splits([sweep / "test"])
    assert "agreement" not in available_features([split]), "K_q = 2 was not swept"
    with pytest.raises(ValueError, match="no queries of K_q = 2"):
        split.features(["q0"], ("agreement",))
    of_two = vectors(N, 2, 2)
    feather.write_feather(of_two.to_arrow(), sweep / "test" / "encoded" / "q2-0.arrow")
    try:
        assert available_features([split])[-3:] == ("confidence", "agreement", "added")
        found = split.features(["q0", "q7"], ("agreement", "added"))
        confidence = split.features(["q7"], ("confidence",))[0, 0]
    finally:
        (sweep / "test" / "encoded" / "q2-0.arrow").unlink()
    cosines = np.einsum("qh,qh->q", *(np.float32(of_two.vectors_MH[place::2]) for place in (0, 1)))
    assert found[:, 0] == pytest.approx(cosines[[0, 7]], abs=1e-3)
    assert found[:, 1] == pytest.approx([0.0, of_two.impact_weights[6] / confidence - 1]), "q0 has no impacts"


def test_features_of_the_collection_and_of_a_first_pass_are_correlated(made: AnalysisReport, sweep: Path) -> None:
    names = {c.feature for c in made.section(FeatureSection).correlations}
    assert names == {"length", "entropy", "content_words", "mean_idf", "max_idf", "confidence"}
    (split,) = open_splits([sweep / "test"])
    weights = split.encoded(1).impact_weights
    found = split.features(["q0", "q1", "q7"], ("confidence",))
    assert found[:, 0] == pytest.approx([0.0, weights[0], weights[6]])
    # Query texts are "heat q0" and so on: every passage has heat, one has the other word.
    idf = query_features(split, ["q0", "q25"], ("max_idf", "mean_idf"))
    assert idf[0] == pytest.approx([np.log2(21 / 2), np.log2(21 / 2) / 2])
    assert idf[1] == pytest.approx([np.log2(21), np.log2(21) / 2]), "no passage has q25"
    with pytest.raises(ValueError, match="'max_idf' needs document frequencies"):
        split.features(["q0"], ("max_idf",))


def test_a_selector_may_look_at_idf_and_not_at_a_pass(sweep: Path, tmp_path: Path) -> None:
    values: dict[str, object] = {"sweeps": (sweep / "test",), "mode": "dense", "output": tmp_path}
    report_selector(FitSelectorJob.model_validate(values | {"features": ("length", "mean_idf")}), "x")
    with pytest.raises(ValueError, match="'confidence' takes a pass of the encoder"):
        report_selector(FitSelectorJob.model_validate(values | {"features": ("confidence",)}), "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"against": ("bm25.trec",)}, "write NAME=RUN.trec"),
        ({"against": ("A=x.trec", "A=y.trec")}, "A has 2 runs, but there are 1 --sweeps"),
        ({"qrels": ("x.tsv",)}, "--qrels goes with --against"),
        ({"against": ("A=BM25",)}, "does not name the collection"),
        ({"against": ("A=BM25",), "qrels": ("OTHERS",)}, "not of the queries that were swept"),
    ],
)
def test_mistakes_are_named(sweep: Path, tmp_path: Path, changes: dict[str, tuple[str, ...]], message: str) -> None:
    (tmp_path / "others.tsv").write_text("q1 0 d1 1\n")
    places = {"BM25": str(sweep / "bm25.trec"), "OTHERS": str(tmp_path / "others.tsv")}
    for word, place in places.items():
        changes = {name: tuple(text.replace(word, place) for text in texts) for name, texts in changes.items()}
    with pytest.raises(ValueError, match=message):
        analyse(job(sweep, output=tmp_path / "report", **changes), "x")
    assert not (tmp_path / "report").exists()
