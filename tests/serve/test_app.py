"""The application under Ray Serve, in both layouts: answers, versions, the key, dying replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.search import open_searcher
from diffretriever.search.selecting import BudgetChooser
from schemas.retriever_parts import Mode
from tests.serving.serving_cases import QUERIES, write_passages

pytestmark = pytest.mark.cluster
MODES: tuple[Mode, ...] = ("dense", "sparse", "hybrid")


@pytest.mark.parametrize("budget", ["adaptive", 3, None])
def test_answers_are_those_of_the_search_job(
    client: httpx2.Client, index: PassageIndex, budget: str | int | None
) -> None:
    searcher = open_searcher(index.uri)
    budgets = [budget if isinstance(budget, int) else 4] * len(QUERIES)
    if budget == "adaptive":
        budgets = [choice.budget for choice in BudgetChooser.beside(searcher, "rule").choose(QUERIES)]
        assert len(set(budgets)) > 1, "slots of several numbers share a batch"
    for mode in MODES:
        expected = searcher.search(QUERIES, top_k=7, modes=[mode], budgets=budgets)[mode]
        answer = ask(client, query=QUERIES, k=7, mode=mode, budget=budget)
        assert pairs(answer) == expected
        assert [result["budget"]["slots"] for result in answer["results"]] == budgets


def test_requests_at_the_same_time_get_their_own_answers(client: httpx2.Client, index: PassageIndex) -> None:
    """A query's vectors depend on its batch by the rounding of their precision, and by no more."""
    searcher = open_searcher(index.uri)
    asked: list[tuple[str, int, int, Mode]] = [(QUERIES[n % 4], 1 + n % 5, 3 + n % 7, MODES[n % 2]) for n in range(12)]
    answers: list[Any] = [None] * len(asked)

    def one(number: int) -> None:
        query, budget, k, mode = asked[number]
        answers[number] = pairs(ask(client, query=query, budget=budget, k=k, mode=mode))[0]

    in_threads(one, len(asked))
    for (query, budget, k, mode), answer in zip(asked, answers, strict=True):
        exact = searcher.search([query], top_k=100, modes=[mode], budgets=[budget])[mode][0]
        scores = [score for _, score in answer]
        assert scores == pytest.approx([score for _, score in exact[:k]], abs=1e-3)
        assert scores == pytest.approx([dict(exact)[passage] for passage, _ in answer], abs=1e-3)


def test_filters_and_explanations(client: httpx2.Client) -> None:
    answer = ask(client, query=QUERIES[0], filter={"collection": "other's"}, explain=True, k=3)
    for hit in answer["results"][0]["hits"]:
        assert hit["collection"] == "other's"
        assert len(hit["explanation"]["slots"]) == 4
        products = [slot["product"] for slot in hit["explanation"]["slots"]]
        if hit["scores"]["dense"] is not None:
            assert sum(products) / 4 == pytest.approx(hit["scores"]["dense"], abs=1e-5)


def test_what_is_added_is_found_and_what_is_deleted_is_not(client: httpx2.Client, index: PassageIndex) -> None:
    added = client.post("/passages", json={"passages": [{"id": "new", "text": "heat"}]}).raise_for_status().json()
    body: dict[str, Any] = {"query": "heat", "k": 100, "mode": "dense"}
    found = ask(client, **body)
    assert found["index"]["version"] == added["version"]
    assert pairs(found) == open_searcher(index.uri).search(["heat"], top_k=100, modes=["dense"])["dense"]
    assert "new" in dict(pairs(found)[0])
    deleted = client.delete("/passages/new").raise_for_status().json()
    found = ask(client, **body)
    assert found["index"]["version"] == deleted["version"] > added["version"]
    assert "new" not in dict(pairs(found)[0])


def test_versions_switch_under_load_and_never_mix(client: httpx2.Client, index: PassageIndex, encoder: Encoder) -> None:
    """Another process adds passages one by one: an answer has as many of them as the version that it names."""
    opened = PassageIndex.open(index.uri)
    first, rows = opened.version, len(opened)
    # An earlier test may have changed the index a moment ago.
    wait_until(lambda: client.get("/index").json()["index"]["version"] == first)
    answers: list[tuple[int, int, int]] = []
    end = time.monotonic() + 30

    def one(_: int) -> None:
        while time.monotonic() < end and (not answers or answers[-1][0] < first + 3):
            answer = ask(client, query="heat wing", k=100, mode="dense")
            new = sum(hit["id"].startswith("v") for hit in answer["results"][0]["hits"])
            answers.append((answer["index"]["version"], answer["index"]["rows"], new))

    def writing() -> None:
        for number in range(3):
            write_passages(encoder, index.uri, [Passage(f"v{number}", "", "heat wing")])
            time.sleep(0.7)

    writer = threading.Thread(target=writing)
    writer.start()
    in_threads(one, 3)
    writer.join()
    latest = PassageIndex.open(index.uri)
    latest.delete([f"v{number}" for number in range(3)])
    assert {version for version, _, _ in answers} >= {first + 3}
    assert all(new == version - first and found == rows + new for version, found, new in answers)
    wait_until(lambda: client.get("/index").json()["index"]["version"] == latest.version)


def test_the_key(address: str) -> None:
    with httpx2.Client(base_url=f"{address}/together", timeout=30) as stranger:
        for method, path in (("POST", "/search"), ("GET", "/index"), ("DELETE", "/passages/d1")):
            assert stranger.request(method, path).status_code == 401
        assert stranger.get("/healthz").json() == {"status": "ok"}
        assert "/search" in stranger.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("victim", ["apart#Encoder#", "apart#Shard1#", "SERVE_CONTROLLER_ACTOR"])
def test_who_is_killed_is_replaced_and_nobody_gets_a_wrong_answer(
    victim: str, address: str, index: PassageIndex
) -> None:
    expected = open_searcher(index.uri).search([QUERIES[0]], top_k=5, modes=["dense"])["dense"]
    body = {"query": QUERIES[0], "k": 5, "mode": "dense"}
    refused: list[httpx2.Response] = []
    end = time.monotonic() + 90
    recovered, killed = threading.Event(), threading.Event()

    def one(_: int) -> None:
        with httpx2.Client(base_url=f"{address}/apart", timeout=60) as client:
            while time.monotonic() < end and not recovered.is_set():
                # What was sent before the kill may be answered after it.
                after = killed.is_set()
                response = client.post("/search", json=body)
                if response.status_code == 200:
                    assert pairs(response.json()) == expected
                    if after:
                        recovered.set()
                else:
                    refused.append(response)

    def kill() -> None:
        time.sleep(0.5)
        kill_actor(victim)
        killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    in_threads(one, 3)
    killer.join()
    assert recovered.is_set()
    assert {response.status_code for response in refused} <= {503}
    assert all(int(response.headers["retry-after"]) > 0 for response in refused)


def kill_actor(name: str) -> None:
    """Kill the process of the one actor whose name has `name` in it; Ray Serve is to replace it."""
    import ray

    (full,) = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if name in a["name"]]
    ray.kill(ray.get_actor(full, namespace="serve"), no_restart=False)


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post("/search", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def pairs(answer: Any) -> list[list[tuple[str, float]]]:
    return [[(hit["id"], hit["score"]) for hit in result["hits"]] for result in answer["results"]]


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work` in threads; raise what one of them raised."""
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
