"""Retrievers for LangChain and LlamaIndex over the client, through those libraries' own interfaces."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from diffretriever.client import AsyncSearchClient, ProblemError, SearchClient
from tests.client.service import FOUND, Script, ok, problem

(HIT,) = FOUND.results[0].hits
ASKED = {"query": "heat", "k": 3, "mode": "dense", "budget": "adaptive", "filter": "collection = 'c'"}
OPTIONS: dict[str, Any] = {"k": 3, "mode": "dense", "budget": "adaptive", "filter": "collection = 'c'"}
METADATA = {
    "id": "p1",
    "title": "Heat",
    "collection": "c",
    "rank": 1,
    "scores": {"hybrid": 0.5, "dense": 0.25, "sparse": None},
    "index_version": 3,
}


def client(script: Script) -> SearchClient:
    return SearchClient(transport=httpx2.MockTransport(script))


def async_client(script: Script) -> AsyncSearchClient:
    return AsyncSearchClient(transport=httpx2.MockTransport(script))


def asked(script: Script) -> list[Any]:
    return [json.loads(request.content) for request in script.requests]


def test_langchain() -> None:
    pytest.importorskip("langchain_core", reason="LangChain is not installed: pip install langchain-core")
    from langchain_core.runnables import RunnableLambda

    from diffretriever.integrations.langchain import SearchRetriever

    script, other = Script([ok(FOUND)] * 3), Script([ok(FOUND)])
    retriever = SearchRetriever(client=client(script), **OPTIONS)
    (found,) = retriever.invoke("heat")
    assert (found.id, found.page_content, found.metadata) == ("p1", "in a slab", {**METADATA, "score": 0.5})
    assert asyncio.run(retriever.ainvoke("heat")) == [found]
    beside = SearchRetriever(client=client(script), async_client=async_client(other), **OPTIONS)
    assert asyncio.run(beside.ainvoke("heat")) == [found]
    assert (retriever | RunnableLambda(len)).invoke("heat") == 1
    assert asked(script) == [ASKED] * 3
    assert asked(other) == [ASKED]


def test_llamaindex() -> None:
    pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed: pip install llama-index-core")
    from diffretriever.integrations.llamaindex import SearchRetriever

    script, other = Script([ok(FOUND)] * 2), Script([ok(FOUND)])
    retriever = SearchRetriever(client(script), **OPTIONS)
    (found,) = retriever.retrieve("heat")
    assert (found.node.node_id, found.text, found.score) == ("p1", "in a slab", HIT.score)
    assert found.node.metadata == METADATA
    beside = SearchRetriever(client(script), async_client(other), **OPTIONS)
    for each in (retriever, beside):
        (again,) = asyncio.run(each.aretrieve("heat"))
        assert (again.node.node_id, again.score) == ("p1", HIT.score)
    assert asked(script) == [ASKED] * 2
    assert asked(other) == [ASKED]
    with pytest.raises(ProblemError, match="at most 32"):
        SearchRetriever(client(Script([problem()]))).retrieve("heat")
