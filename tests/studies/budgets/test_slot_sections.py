"""The report's parts that need vectors, against plain calculations."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from pyarrow import feather

from diffretriever.schemas.selector import FitSelectorJob
from diffretriever.studies.budgets.analysis import AnalysisData, read_data
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.budgets.selector_report import report_selector
from diffretriever.studies.budgets.slots import SlotSection
from diffretriever.studies.budgets.sweep_files import available_features, open_splits
from tests.studies.budgets.made_up import make_sweep
from tests.studies.budgets.made_up_vectors import add_vectors, passage_vectors, query_vectors, scores, vectors

N = 30


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_sweep(tmp_path_factory.mktemp("sweeps"), "one", n=N)
    add_vectors(folder, "test", N)
    return folder


@pytest.fixture(scope="module")
def data(sweep: Path) -> AnalysisData:
    values = {"sweeps": (sweep / "test",), "budget": "q4p4", "mode": "dense", "output": sweep / "report"}
    return read_data(AnalyseBudgetsJob.model_validate(values))


def test_cosines_are_those_of_the_stored_vectors(data: AnalysisData) -> None:
    section = SlotSection.compute(data)
    found = {(s.side, s.slots): s for s in section.similarities}
    assert set(found) == {("query", 4), ("passage", 4)}, "one slot has no pair"
    for (side, _), texts in zip(found, (query_vectors(N, 4), passage_vectors(4)), strict=True):
        pairs = [float(text[i] @ text[j]) for text in texts for i, j in combinations(range(4), 2)]
        assert found[side, 4].cosine == pytest.approx(np.mean(pairs), abs=1e-3)
        assert found[side, 4].texts == len(texts)
    assert "](slots.png)" in "\n".join(section.page(data.facts))
    assert section.figures(data)["slots.png"].startswith(b"\x89PNG")


def test_wins_are_counted_over_the_top_ranked_passages(data: AnalysisData) -> None:
    queries, passages = query_vectors(N, 4), passage_vectors(4)
    counts = np.zeros((4, 4))
    for query, row in zip(queries, scores(queries, passages), strict=True):
        for passage in np.argsort(-row)[:10]:
            counts[range(4), (query @ passages[passage].T).argmax(axis=1)] += 1
    (wins,) = SlotSection.compute(data).wins
    assert (wins.queries, wins.passages) == (N, 10 * N)
    assert np.array(wins.shares) == pytest.approx(counts / counts.sum(axis=1, keepdims=True))
    assert 1 < wins.in_use <= 4


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


def test_features_of_the_collection_and_of_a_first_pass_are_correlated(data: AnalysisData, sweep: Path) -> None:
    assert {*data.feature_names} == {"length", "entropy", "content_words", "mean_idf", "max_idf", "confidence"}
    (split,) = open_splits([sweep / "test"])
    weights = split.encoded(1).impact_weights
    found = split.features(["q0", "q1", "q7"], ("confidence",))
    assert found[:, 0] == pytest.approx([0.0, weights[0], weights[6]])
    # Query texts are "heat q0" and so on: every passage has heat, one has the other word.
    idf = split.features(["q0", "q25"], ("max_idf", "mean_idf"))
    assert idf[0] == pytest.approx([np.log2(21 / 2), np.log2(21 / 2) / 2])
    assert idf[1] == pytest.approx([np.log2(21), np.log2(21) / 2]), "no passage has q25"


def test_a_selector_may_look_at_idf_and_not_at_a_pass(sweep: Path, tmp_path: Path) -> None:
    values: dict[str, object] = {"sweeps": (sweep / "test",), "mode": "dense", "output": tmp_path}
    report_selector(FitSelectorJob.model_validate(values | {"features": ("length", "mean_idf")}), "x")
    with pytest.raises(ValueError, match="'confidence' takes a pass of the encoder"):
        report_selector(FitSelectorJob.model_validate(values | {"features": ("confidence",)}), "x")
