"""Load reduces requests within the configured bounds, and responses report it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import SearchRequest
from diffretriever.schemas.serve_config import LoadBudget
from diffretriever.search import open_searcher
from diffretriever.search.searcher import Searcher
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.serving.load import CALM_S, Caps, Load, load_levels
from diffretriever.serving.searches import Search
from diffretriever.serving.service import Service
from diffretriever.vectors.fusion import FUSION_DEPTH, lists_for, ranked
from tests.search.dense_cases import BUDGET, opened, prepare
from tests.serving.serving_cases import QUERIES, local_service

BOUNDS = {"least_query_slots": 1, "least_candidates": 5}
MOST = 12
Pairs = list[tuple[str, float]]


def levels(load: Load, *ongoing: int) -> list[int]:
    """Return the level after each observation."""
    levels = []
    for number in ongoing:
        load.observe(number)
        levels.append(load.caps.level)
    return levels


def load_at(times: list[float]) -> Load:
    """Return a load whose clock shows the last of `times`."""
    return Load(MOST, load_levels(LoadBudget(**BOUNDS), 4), lambda: times[-1])


def test_load_levels_reach_the_bounds_in_equal_ratios() -> None:
    full = Caps()
    assert load_levels(LoadBudget(), 4) == (full,)
    assert load_levels(LoadBudget(least_query_slots=1), 16) == (full, Caps(1, 4), Caps(2, 1))
    assert load_levels(LoadBudget(least_candidates=10), None) == (full, Caps(1, None, 100), Caps(2, None, 10))
    both = LoadBudget(least_query_slots=3, least_candidates=250)
    assert load_levels(both, 4) == (full, Caps(1, 4, 500), Caps(2, 3, 250))


@pytest.mark.parametrize(
    ("bounds", "own_budget", "match"),
    [
        ({"least_query_slots": 1}, None, "load.least_query_slots: .* no query budget: leave it out"),
        ({"least_query_slots": 5}, 4, "load.least_query_slots is 5, and the retriever's K_q is 4"),
        ({"least_candidates": FUSION_DEPTH}, 4, f"load.least_candidates is {FUSION_DEPTH}: set less than"),
    ],
)
def test_bounds_without_effect_are_rejected(bounds: dict[str, int], own_budget: int | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_levels(LoadBudget(**bounds), own_budget)


def test_the_level_rises_at_once() -> None:
    assert levels(load_at([0]), 1, 3, 4, 7, 8, 12) == [0, 0, 1, 1, 2, 2]
    assert levels(load_at([0]), 12) == [2]


def test_the_level_falls_step_by_step_after_low_load() -> None:
    times = [0.0]
    load = load_at(times)
    assert levels(load, 12, 4, 3, 0) == [2, 2, 2, 2], "no time has passed"
    times.append(0.75 * CALM_S)
    assert levels(load, 4) == [2], "the load is too high for a lower level"
    assert levels(load, 3) == [2]
    times.append(1.5 * CALM_S)
    assert levels(load, 3) == [2]
    times.append(1.75 * CALM_S)
    assert levels(load, 3) == [1], "low enough for level 1"
    times.append(10.75 * CALM_S)
    assert levels(load, 1) == [1], "low enough for level 0 only from now on"
    times.append(11.75 * CALM_S)
    assert levels(load, 1) == [0]


@pytest.fixture
def service(index: PassageIndex) -> Service:
    return serving(index.uri, 2)


def serving(uri: str, level: int, **settings: object) -> Service:
    """Return a service whose load level is fixed."""
    made = local_service(uri, max_ongoing=MOST, load=BOUNDS, **settings)
    made.load = load_at([0])
    made.load.observe([0, MOST // 3, MOST][level])
    return made


def ask(service: Service, **body: Any) -> Any:
    with TestClient(make_api(service, Keys(), None)) as client:
        return client.post("/search", json=body).raise_for_status().json()


def pairs(answer: Any) -> list[Pairs]:
    return [[(hit["id"], hit["score"]) for hit in result["hits"]] for result in answer["results"]]


def fused_by_hand(searcher: Searcher, mode: Mode, k: int, budgets: list[int], depth: int) -> list[Pairs]:
    lists = searcher.search(QUERIES, k=depth, modes=lists_for([mode]), budgets=budgets)
    return list(ranked(mode, {name: lists[name] for name in lists_for([mode])}, k, depth))


def test_a_reduced_budget_equals_the_same_explicit_budget(service: Service, index: PassageIndex) -> None:
    reduced = ask(service, query=QUERIES, mode="dense", k=7)
    assert reduced["reduced"] == {"query_slots": 1, "candidates": None}
    assert {(each["budget"]["slots"], each["budget"]["reason"]) for each in reduced["results"]} == {(1, "load")}
    explicit = ask(local_service(index.uri), query=QUERIES, mode="dense", k=7, budget=1)
    assert explicit["reduced"] is None
    assert pairs(reduced) == pairs(explicit)
    assert pairs(explicit) == open_searcher(index.uri).search(QUERIES, k=7, modes=["dense"], budgets=[1] * 4)["dense"]


@pytest.mark.parametrize(("level", "slots", "candidates"), [(1, 2, 71), (2, 1, 5)])
@pytest.mark.parametrize("mode", ["hybrid", "dense+bm25"])
def test_a_reduced_sum_equals_the_fusion_of_shorter_lists(
    index: PassageIndex, level: int, slots: int, candidates: int, mode: Mode
) -> None:
    answer = ask(serving(index.uri, level), query=QUERIES, mode=mode, k=4)
    assert answer["reduced"] == {"query_slots": slots, "candidates": candidates}
    searcher = open_searcher(index.uri)
    assert pairs(answer) == fused_by_hand(searcher, mode, 4, [slots] * 4, candidates)
    assert pairs(answer) != searcher.search(QUERIES, k=4, modes=[mode])[mode]


def test_reduced_candidates_are_at_least_k(service: Service) -> None:
    answer = ask(service, query=QUERIES[0], k=30)
    assert answer["reduced"]["candidates"] == 30
    assert len(answer["results"][0]["hits"]) == 30


def test_load_lowers_adaptive_but_not_explicit_budgets(service: Service) -> None:
    explicit = ask(service, query=QUERIES, budget=3, mode="dense")
    assert explicit["reduced"] is None
    assert {(each["budget"]["slots"], each["budget"]["reason"]) for each in explicit["results"]} == {(3, "request")}
    chosen = ask(service, query=QUERIES, budget="adaptive", mode="dense")
    assert chosen["reduced"] == {"query_slots": 1, "candidates": None}
    used = [each["budget"] for each in chosen["results"]]
    assert {each["slots"] for each in used} == {1}
    assert {each["rule"] for each in used} == {"rule"}
    vectors = TestClient(make_api(service, Keys(), None)).post("/encode", json={"query": QUERIES[0]}).json()
    assert len(vectors["results"][0]["slots"]) == 4, "POST /encode is not reduced"


def test_a_single_exact_list_is_not_reduced(service: Service) -> None:
    assert ask(service, query=QUERIES, mode="sparse", budget=2)["reduced"] is None


def test_load_lowers_the_candidates_of_a_candidate_index(encoder: Encoder, own_index: PassageIndex) -> None:
    prepare(own_index)
    service = serving(own_index.uri, 2)
    answer = ask(service, query=QUERIES, mode="dense", k=3, budget=4)
    assert answer["reduced"] == {"query_slots": None, "candidates": 5}
    assert pairs(answer) == opened(own_index, search_budget=5).search(encoder.encode_queries(QUERIES), 3)
    many = ask(service, query=QUERIES, mode="dense", k=BUDGET, budget=4)
    assert many["reduced"] is None, "k is not below the calibrated number"


def test_a_batch_mixes_reduced_and_full_requests(own_index: PassageIndex) -> None:
    prepare(own_index)
    service = local_service(own_index.uri)
    caps = [Caps(), Caps(2, 1, 5), Caps(1, 2, 9), Caps(), Caps(2, 1, 5)]
    modes: tuple[Mode, ...] = ("dense", "hybrid", "sparse")
    for mode in modes:
        searches = [
            Search(SearchRequest(query=QUERIES[n % 4], k=3), [QUERIES[n % 4]], service.view, mode, None, cap)
            for n, cap in enumerate(caps)
        ]
        together, alone = service._answer(searches), [service._answer([search])[0] for search in searches]
        for answer, single in zip(together, alone, strict=True):
            expected: list[Any] = [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in single.results[0].hits]
            assert [(hit.id, hit.score) for hit in answer.results[0].hits] == expected
        reductions = [
            (each.results[0].budget.slots, each.reduced.candidates if each.reduced else None) for each in together
        ]
        assert reductions == [(cap.query_slots or 4, cap.candidates) for cap in caps]


def test_reduced_responses_are_counted_by_level(service: Service) -> None:
    measured: list[tuple[str, str]] = []
    service._measure = lambda name, value, tag="": measured.append((name, tag))
    ask(service, query=QUERIES)
    ask(service, query=QUERIES, mode="dense", budget=2)
    assert [tag for name, tag in measured if name == "reduced_requests"] == ["2"]
    assert {tag for name, tag in measured if name == "stage_ms"} == {"choose", "encode", "search", "passages", "total"}


def test_concurrent_requests_are_reduced_before_any_is_rejected(index: PassageIndex) -> None:
    service = local_service(index.uri, max_ongoing=4, load=BOUNDS)
    service.load = Load(4, load_levels(LoadBudget(**BOUNDS), 4))
    api = make_api(service, Keys(), None)

    async def ask_all() -> list[int]:
        transport = httpx2.ASGITransport(app=api)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
            answers = await asyncio.gather(*(client.post("/search", json={"query": QUERIES[0]}) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {200}
        return [answer.json()["results"][0]["budget"]["slots"] for answer in answers]

    assert 1 in asyncio.run(ask_all())
