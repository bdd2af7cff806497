"""The application under Ray Serve, in both layouts: responses, versions, keys, crashed replicas."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.serve.session import kill_actor
from diffretriever.index.table import PassageIndex
from diffretriever.search import open_searcher
from diffretriever.search.selecting import BudgetChooser
from tests.serve.asking import (
    BEARER,
    LIMIT_S,
    MEASURED_S,
    MODES,
    Answer,
    ask,
    keep_asking,
    note_measured,
    pairs,
    wait_until,
)
from tests.serving.serving_cases import QUERIES
from tools.site import metrics_reference

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("budget", ["adaptive", 3, None])
def test_responses_equal_those_of_the_search_job(
    client: httpx2.Client, index: PassageIndex, budget: str | int | None
) -> None:
    searcher = open_searcher(index.uri)
    budgets = [budget if isinstance(budget, int) else 4] * len(QUERIES)
    if budget == "adaptive":
        budgets = [choice.budget for choice in BudgetChooser("rule", searcher.index, searcher.preparer).choose(QUERIES)]
        assert len(set(budgets)) > 1, "slots of several numbers share a batch"
    for mode in MODES:
        expected = searcher.search(QUERIES, k=7, modes=[mode], budgets=budgets)[mode]
        answer = ask(client, query=QUERIES, k=7, mode=mode, budget=budget)
        assert pairs(answer) == expected
        assert [result["budget"]["slots"] for result in answer["results"]] == budgets


def test_added_passages_are_found_and_deleted_ones_are_not(client: httpx2.Client, index: PassageIndex) -> None:
    added = client.post("/passages", json={"passages": [{"id": "new", "text": "heat"}]}).raise_for_status().json()
    body: dict[str, Any] = {"query": "heat", "k": 100, "mode": "dense"}
    response = ask(client, **body)
    assert response["index"]["version"] == added["version"]
    assert pairs(response) == open_searcher(index.uri).search(["heat"], k=100, modes=["dense"])["dense"]
    assert "new" in dict(pairs(response)[0])
    deleted = client.delete("/passages/new").raise_for_status().json()
    response = ask(client, **body)
    assert response["index"]["version"] == deleted["version"] > added["version"]
    assert "new" not in dict(pairs(response)[0])


@pytest.mark.parametrize("application", ["together", "apart"])
def test_metrics_are_exported_for_the_guide_and_the_dashboard(address: str, application: str) -> None:
    kinds = {"answer"} if application == "together" else {"answer", "encode", "search"}
    expected = {
        "ray_diffretriever_stage_ms_count": {"choose", "encode", "search", "passages", "total"},
        "ray_diffretriever_batch_requests_count": kinds,
        "ray_diffretriever_waiting_requests": kinds,
        "ray_diffretriever_query_slots_count": {""},
        "ray_diffretriever_held_passages": {""},
        "ray_diffretriever_held_bytes": {""},
    }
    documented = set(re.findall(r"`(ray_\w+)`", "\n".join(metrics_reference())))
    with httpx2.Client(base_url=f"{address}/{application}", headers=BEARER, timeout=LIMIT_S) as client:
        ask(client, query=QUERIES, budget=3)
        assert client.post("/search", json={"query": ""}).status_code == 422
        seen: dict[str, set[str]] = {}

        def are_there() -> bool:
            answer = client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert "ray_node_" not in answer.text, "only Ray's measurements of serving"
            assert set(re.findall(r"# TYPE (ray_diffretriever_\w+)", answer.text)) <= documented
            note_measured(seen, answer.text, application)
            return expected.items() <= seen.items() and shown_metrics() <= set(seen)

        wait_until(are_there, MEASURED_S)


def shown_metrics() -> set[str]:
    """Return the metrics in the dashboard's expressions."""
    board = json.loads((ROOT / "serve" / "grafana.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return set(re.findall(r"\bray_\w+", " ".join(expressions)))


@pytest.mark.parametrize(
    ("application", "victim", "is_missed"),
    [
        ("apart", "apart#Encoder#", False),
        ("together", "together#Ingress#", True),
    ],
)
def test_a_killed_replica_is_replaced_and_no_request_hangs(
    application: str, victim: str, is_missed: bool, address: str, index: PassageIndex
) -> None:
    expected = open_searcher(index.uri).search([QUERIES[0]], k=5, modes=["dense"])["dense"]

    def is_refused(answer: Answer) -> bool:
        return answer.status != 200

    answers = while_killed(f"{address}/{application}", victim, is_refused, is_missed, k=5)
    refused = [answer.response for answer in answers if is_refused(answer)]
    assert all(pairs(answer.response.json()) == expected for answer in answers if answer.status == 200)
    assert bool(refused) == is_missed
    assert {response.status_code for response in refused} <= {503}
    assert {response.json()["type"] for response in refused} <= {"urn:diffretriever:problem:unavailable"}
    assert all(int(response.headers["retry-after"]) > 0 for response in refused)
    assert max(answer.seconds for answer in answers) < LIMIT_S / 4


def test_results_are_partial_while_a_killed_shard_restarts(address: str, index: PassageIndex) -> None:
    ((*whole,),) = open_searcher(index.uri).search([QUERIES[0]], k=1000, modes=["dense"])["dense"]

    def is_partial(answer: Answer) -> bool:
        return bool(answer.response.json()["missing_shards"])

    answers = while_killed(f"{address}/apart", "apart#Shard1#", is_partial, is_missed=True, k=1000)
    assert {answer.status for answer in answers} == {200}
    for answer in (each.response.json() for each in answers):
        (hits,) = pairs(answer)
        if answer["missing_shards"]:
            assert answer["missing_shards"] == [1]
            assert hits == [hit for hit in whole if hit in hits]
            assert 0 < len(hits) < len(whole)
        else:
            assert hits == whole
    assert max(answer.seconds for answer in answers) < LIMIT_S / 4


def while_killed(url: str, victim: str, misses: Callable[[Answer], bool], is_missed: bool, **body: Any) -> list[Answer]:
    """Send requests while an actor is killed and replaced, again if no request noticed; return the answers."""

    def kill() -> None:
        time.sleep(0.5)
        kill_actor(victim)

    with ThreadPoolExecutor(1) as killer:
        killed = killer.submit(kill)
        quiet = time.monotonic() + 4

        def has_recovered(answers: list[Answer]) -> bool:
            missing = [answer.asked for answer in answers if misses(answer)]
            since = missing[0] if is_missed and missing else quiet
            return killed.done() and any(each.asked > since and not misses(each) for each in answers)

        answers = keep_asking(url, has_recovered, query=QUERIES[0], mode="dense", **body)
        killed.result()
    if is_missed and not any(map(misses, answers)):
        return while_killed(url, victim, misses, is_missed, **body)
    return answers
