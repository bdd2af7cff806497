"""The plan: what goes into it, what is worked out, what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from diffretriever.collections import Passage
from diffretriever.studies.planning import SAMPLE, count, make_plan, measure, page
from diffretriever.studies.planning_config import PlanJob
from diffretriever.vectors.representations import Representations


def job(**values: object) -> PlanJob:
    return PlanJob.model_validate({"passages": 1000, "bandwidth": 10, **values})


def test_hours_scan_and_price_by_hand() -> None:
    plan = make_plan(job(budget=("q4p4", "q4p16"), rate=50), None, [])
    narrow, wide = plan.budgets
    assert (narrow.budget, wide.budget) == ("q4p4", "q4p16")
    assert narrow.hours == wide.hours == 1000 / 50 / 3600
    assert wide.scanned == 1000 * 16 * (384 + 4) == 4 * narrow.scanned
    assert wide.seconds_per_query == wide.scanned / 10e9


@pytest.mark.parametrize(
    ("passages", "budget", "milliseconds"),
    [(60_000, "q4p16", 10.2), (1_000_000, "q4p4", 9.0), (8_840_000, "q4p4", 31.1)],
)
def test_candidates_by_sketches_take_what_was_measured(passages: int, budget: str, milliseconds: float) -> None:
    """See "A model's vectors" in docs/reports/2026-11-26-cpu.md: means beside the table, memory at 10.2 GB/s."""
    plan = make_plan(job(passages=passages, budget=(budget,), bandwidth=10.2), None, [])
    assert plan.budgets[0].sketches_seconds == pytest.approx(milliseconds / 1e3, rel=0.15)


@pytest.mark.parametrize(
    ("retriever", "vectors", "impacts"),
    [("minilm-pooled", 1, 0), ("promptreps-llama3", 20, 30), ("diffretriever-dream", 16, 30)],
)
def test_vectors_and_impacts_are_those_of_the_method(retriever: str, vectors: int, impacts: int) -> None:
    (planned,) = make_plan(job(retriever=retriever), None, []).budgets
    assert (planned.vectors, planned.impacts) == (vectors, impacts)


def test_a_vector_a_token_is_as_many_as_there_are_tokens() -> None:
    (planned,) = make_plan(job(retriever="colbertv2", tokens=60), None, []).budgets
    assert planned.vectors == 60
    for retriever, tokens, vectors in (("minilm-tokens", 600, 256), ("minilm-clustered", 60, 16)):
        (planned,) = make_plan(job(retriever=retriever, tokens=tokens), None, []).budgets
        assert planned.vectors == vectors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"passages": None}, "give --passages NUMBER, or --collection"),
        ({"measure": True}, "--measure needs --collection"),
        ({"measure": True, "collection": "pydoc", "rate": 1}, "--rate or --measure, not both"),
        ({"retriever": "bm25"}, "bm25 makes no vectors"),
        ({"retriever": "minilm-pooled", "budget": ("q1p1",)}, "no slots: leave --budget out"),
    ],
)
def test_plans_that_cannot_be_made(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(job(**values), None, [])


@pytest.mark.parametrize("key", ["hidden_size", "d_model"])
def test_vectors_have_the_size_in_the_models_config(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: 24}))
    assert make_plan(job(retriever="diffembed-llada", backbone=str(tmp_path)), None, []).hidden_size == 24
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config.json cannot be used: .*: add --measure"):
        make_plan(job(backbone=str(tmp_path)), None, [])


class SlowEncoder:
    """Three vectors a passage, a thousandth of a second each."""

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Representations:
        time.sleep(0.001 * len(texts))
        vectors_MH = np.zeros((3 * len(texts), 8), np.float16)
        return Representations.of_vectors(vectors_MH, [3] * len(texts), [len(text.split()) for text in texts])


def test_a_collection_is_counted_and_an_encoder_measured() -> None:
    passages = [Passage(str(n), "ä", f"{n:04} words of text") for n in range(1000)]
    counted = count(passages)
    assert (counted.passages, counted.text_bytes) == (1000, 2 + 18)
    assert len(set(counted.sample)) == SAMPLE
    assert np.mean([int(p.text[:4]) for p in counted.sample]) == pytest.approx(500, abs=75), "drawn from all of it"
    measured = measure(SlowEncoder(), counted.sample)  # type: ignore[arg-type]
    assert 100 < measured.rate < 1000
    plan = make_plan(job(passages=None, collection="c", measure=True), counted, [measured])
    (planned,) = plan.budgets
    assert (plan.passages, plan.hidden_size, plan.tokens, plan.text_bytes) == (1000, 8, 4, 20)
    assert (planned.vectors, planned.impacts, planned.rate) == (3, 0, measured.rate)
    assert plan.measured_on == SAMPLE


def test_the_page_has_a_column_a_budget() -> None:
    plan = make_plan(job(passages=8_841_823, retriever="diffretriever-dream", budget=("q1p1", "q4p16")), None, [])
    lines = page(plan).splitlines()
    assert lines[0] == "8,841,823 passages of 75 tokens (322 bytes), diffretriever-dream, vectors of 3,584 numbers"
    assert lines[2].split() == ["q1p1", "q4p16"]
    assert next(line for line in lines if "bf16, GiB" in line).split()[-2:] == ["59.03", "944.41"]
    assert "hours" not in page(plan)
    assert "encoding, hours of one device" in page(make_plan(job(rate=2), None, []))
