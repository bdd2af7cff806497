import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.collections import Run
from diffretriever.evaluation.measures import evaluate, parse_measures
from diffretriever.evaluation.report import intervals_of

QRELS = {
    "graded": {"a": 2, "b": 1, "c": 0},
    "second": {"x": 1},
    "late": {"z": 1},
    "absent": {"y": 1},
    "nothing-relevant": {"n": 0},
}
RUN = {
    "graded": {"b": 0.9, "c": 0.8, "a": 0.7},
    "second": {"w": 2.0, "x": 1.0},
    "late": {**{f"d{i:02}": 1.0 - i / 100 for i in range(10)}, "z": 0.5},
    "nothing-relevant": {"n": 1.0},
    "not judged": {"a": 1.0},
}


def test_values_computed_by_hand() -> None:
    result = evaluate(Run.of(RUN), QRELS, ("nDCG@10", "MRR@10", "Recall@100", "P@1"))
    # Linear gain, discount 1 / log2(rank + 1): b at 1, a at 3, against a at 1, b at 2.
    graded = (1 + 2 / 2) / (2 + 1 / math.log2(3))
    ndcg = {"graded": graded, "second": 1 / math.log2(3), "late": 0.0, "absent": 0.0, "nothing-relevant": 0.0}
    assert result.per_query["nDCG@10"] == pytest.approx(ndcg)
    assert result.mean["nDCG@10"] == pytest.approx(sum(ndcg.values()) / 5)
    assert result.per_query["MRR@10"] == pytest.approx(
        {"graded": 1.0, "second": 0.5, "late": 0.0, "absent": 0.0, "nothing-relevant": 0.0}
    )
    assert result.mean["MRR@10"] == pytest.approx(1.5 / 5)
    assert result.mean["Recall@100"] == pytest.approx(3 / 5)
    assert result.mean["P@1"] == pytest.approx(1 / 5)


@pytest.mark.parametrize("run", [{}, {"graded": {}}, {"not judged": {"a": 1.0}}])
def test_a_run_without_a_judged_query_scores_zero(run: dict[str, dict[str, float]]) -> None:
    result = evaluate(Run.of(run), QRELS)
    assert set(result.mean.values()) == {0.0}
    assert all(values.keys() == QRELS.keys() for values in result.per_query.values())


@pytest.mark.parametrize("measure", ["MRR@10", "RR", "nDCG@10", "P@1", "Judged@1", "Success@1"])
def test_ties_are_ranked_by_ascending_id_whatever_the_measure(measure: str) -> None:
    run = {"q": {"b": 1.0, "a": 1.0}}
    assert evaluate(Run.of(run), {"q": {"a": 1}}, [measure]).mean[measure] == 1.0
    assert evaluate(Run.of(run), {"q": {"b": 1}}, [measure]).mean[measure] < 1.0


def test_scores_closer_than_float32_are_told_apart() -> None:
    run = {"q": {"a": 1.0, "b": 1.0 + 1e-12}}
    assert evaluate(Run.of(run), {"q": {"b": 1}}, ["nDCG@1", "MRR@10"]).mean == {"nDCG@1": 1.0, "MRR@10": 1.0}


CUT = "nDCG nDCG(dcg='exp-log2') P P(rel=2) P(judged_only=True) R RR AP Success Judged ERR"


@pytest.mark.parametrize("family", CUT.split())
def test_leaving_out_ranks_below_the_cutoff_changes_no_bit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # gdeval, which computes two of them, takes numbers for queries.
    rng, measure = np.random.default_rng(0), f"{family}@3"
    qrels = {f"{q}": {f"d{d}": int(rng.integers(0, 3)) for d in rng.choice(12, 5, replace=False)} for q in range(8)}
    run = Run.of({f"{q}": {f"d{d}": float(rng.integers(0, 4)) for d in range(12 - q)} for q in range(8)})
    cut = evaluate(run, qrels, [measure])
    monkeypatch.setattr("diffretriever.evaluation.measures.deepest_rank", lambda _: None)
    assert evaluate(run, qrels, [measure]) == cut


@pytest.mark.parametrize("query", ["2", "PLAIN-2", "q2", "a b"])
@pytest.mark.parametrize(("measure", "value"), [("ERR@20", 1 / 16), ("nDCG(dcg='exp-log2')@10", 1.0)])
def test_measures_of_gdeval_do_not_depend_on_query_ids(query: str, measure: str, value: float) -> None:
    run, qrels = {query: {"a": 2.0}, "x-2": {"b": 1.0}}, {query: {"a": 1}, "x-2": {"a": 1}}
    assert evaluate(Run.of(run), qrels, [measure]).per_query[measure] == {query: value, "x-2": 0.0}


def test_a_measure_has_the_same_value_whatever_else_is_measured() -> None:
    run = Run.of({"q": {f"d{d:02}": -float(d) for d in range(30)}})
    qrels = {"q": {f"d{d:02}": 1 + d % 3 for d in range(0, 30, 4)}}
    names = [
        "nDCG(gains={0:0,1:5})@10", "nDCG", "IPrec@0.111", "IPrec@0.112", "P(judged_only=True)@5", "P@5", "NumRet",
        "NumRelRet", "SetF", "SetF(beta=2.0)", "RR(rel=2)", "RR",
    ]  # fmt: skip
    assert evaluate(run, qrels, names).mean == {name: evaluate(run, qrels, [name]).mean[name] for name in names}


def test_counts_are_summed_as_ir_measures_sums_them() -> None:
    names = ("NumQ", "NumRet", "NumRel", "NumRelRet", "P@1")
    result = evaluate(Run.of(RUN), QRELS, names)
    expected = ir_measures.calc_aggregate(parse_measures(names), QRELS, RUN)
    assert result.mean == {name: expected[measure] for name, measure in zip(names, parse_measures(names), strict=True)}
    assert result.per_query["NumRet"]["late"] == 11
    low, high = intervals_of({"run": result})["run"]["NumRet"]
    assert low <= result.mean["NumRet"] <= high


def test_a_value_that_a_provider_does_not_return_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ir_measures.providers.pytrec_eval_provider.PytrecEvalInvoker.iter_calc", lambda *_: ())
    with pytest.raises(ValueError, match="returns no nDCG@10 for query 'graded'"):
        evaluate(Run.of(RUN), QRELS, ["nDCG@10"])


hits = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 0.5, 1.0]), max_size=8)


@settings(deadline=None, max_examples=40)
@given(found=hits, relevant=st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_equals_the_definitions(found: dict[str, float], relevant: set[str]) -> None:
    result = evaluate(Run.of({"q": found}), {"q": dict.fromkeys(relevant, 1)}, ("MRR@2", "Recall@3", "nDCG@10"))
    ranking = sorted(found, key=lambda i: (-found[i], i))
    ranks = [rank for rank, i in enumerate(ranking, start=1) if i in relevant]
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, len(relevant) + 1))
    expected = {
        "MRR@2": 1 / ranks[0] if ranks and ranks[0] <= 2 else 0.0,
        "Recall@3": sum(rank <= 3 for rank in ranks) / len(relevant),
        "nDCG@10": sum(1 / math.log2(rank + 1) for rank in ranks) / ideal,
    }
    assert result.mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nDCG10", "Did you mean 'nDCG@10'"),
        ("Recal@100", "Did you mean 'Recall@100'"),
        ("nDCG@ten", "nDCG"),
        ("nDCG(", "nDCG"),
        ("Recall", "Recall"),
        ("", "Known:"),
        ("alpha_nDCG@10", "cannot|not a measure"),
        ("nDCG@0", "cutoff of 0"),
        ("AP(rel=0)@10", "rel of 0"),
    ],
)
def test_wrong_measures_are_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint) as caught:
        parse_measures(["nDCG@10", name])
    assert f"'{name}'" in str(caught.value)


def test_a_measure_that_its_provider_cannot_compute_is_named() -> None:
    with pytest.raises(ValueError, match="could not compute Accuracy"):
        evaluate(Run.of({"q": {"a": 1.0}}), {"q": {"a": 1}}, ["Accuracy"])


def test_nan_and_empty_qrels_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Run.of({"graded": {"a": math.nan}})
    with pytest.raises(ValueError, match="no query"):
        evaluate(Run.of(RUN), {})


def test_a_querys_own_passage_is_left_out() -> None:
    run = {"a": {"a": 1.0, "b": 0.5}, "c": {"b": 1.0}, "d": {"d": 1.0}}
    assert Run.of(run).without_self() == {"a": {"b": 0.5}, "c": {"b": 1.0}, "d": {}}
