"""Recorded passes encode queries to the same results, with few recordings."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from diffretriever.backbones.graphs import PassGraphs
from diffretriever.backbones.inputs import PassInputs
from diffretriever.index.table import PassageIndex
from tests.serving.serving_cases import QUERIES, served


def answers(uri: str, *, recorded: bool) -> list[Any]:
    with served(uri, recorded=recorded) as client:
        queries = [*QUERIES, *QUERIES, QUERIES]
        bodies = [{"query": query, "k": 5, "mode": "dense", "budget": "adaptive"} for query in queries]
        responses = [client.post("/search", json=body).raise_for_status().json()["results"] for body in bodies]
    return [hit for results in responses for result in results for hit in result["hits"]]


def test_recorded_passes_do_not_change_results(index: PassageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PassGraphs] = []
    states = PassGraphs.states

    def noted(graphs: PassGraphs, inputs: PassInputs, *, nested: bool) -> Tensor:
        made.append(graphs)
        return states(graphs, inputs, nested=nested)

    monkeypatch.setattr(PassGraphs, "states", noted)
    plain = answers(index.uri, recorded=False)
    assert not made
    recorded = answers(index.uri, recorded=True)
    assert len(made) == 2 * len(QUERIES) + 1
    assert len(made[0].keys) <= 4
    assert [hit["id"] for hit in recorded] == [hit["id"] for hit in plain]
    for ours, theirs in zip(recorded, plain, strict=True):
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-3)
