"""What of a retriever is otherwise on one collection: taken into the config by name, and into its fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.collections.beir import FOLDERS
from diffretriever.presets import load_retriever, preset_names
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, LibraryRetriever, RetrieverConfig

BEFORE = {
    "diffretriever-dream": "8efd4fd6fa07c87b",
    "diffretriever-dream-single": "109d8d83d7ed464a",
    "diffretriever-dream-shifted": "d5178a050ed0021b",
    "diffretriever-dream-2step": "112437a3a339f142",
    "diffretriever-llada": "ff628d48fdced1eb",
    "diffretriever-llada-single": "109d8d83d7ed464a",
    "diffretriever-llada-2step": "9b157500fea1a510",
    "diffretriever-llada15": "ff628d48fdced1eb",
    "diffretriever-dream-tuned": "207b0f90657de648",
    "diffretriever-dream-tuned-2step": "4f5962a44fe1de1d",
    "diffretriever-dream-single-tuned": "325f81f62aa365e5",
    "diffretriever-llada-tuned": "caeb85985962d100",
    "diffretriever-llada-tuned-2step": "daec80f0ddeab64f",
    "diffretriever-llada-single-tuned": "325f81f62aa365e5",
    "promptreps-qwen2.5": "a23a5ab509f46beb",
    "promptreps-qwen2.5-single": "254e289d9738b065",
    "promptreps-qwen2.5-three-words": "dd53b4c9c579b80a",
    "promptreps-qwen2.5-tuned": "adb4255b24f854fc",
    "promptreps-llama3": "a23a5ab509f46beb",
    "promptreps-llama3-single": "254e289d9738b065",
    "promptreps-llama3-three-words": "dd53b4c9c579b80a",
    "promptreps-llama3-tuned": "adb4255b24f854fc",
    "diffembed-dream": "b2a553a9c122637b",
    "diffembed-llada": "b2a553a9c122637b",
    "repllama-llama3": "fe1c5d700218eb44",
    "repllama-qwen2.5": "fe1c5d700218eb44",
    "minilm-pooled": "2f141f4330aee3e8",
    "minilm-tokens": "32920aa887c11015",
    "minilm-clustered": "7afcaf7695d2659a",
    "diffretriever-minilm": "741740241b63bf43",
    "diffretriever-minilm-v1": "31f43d0ef90a3663",
    "diffretriever-minilm-untrained": "a75f7fd74000d5d0",
    "bm25": "e75dd3c45bd94a69",
    "contriever": "1e2be5634c20fbd6",
    "tas-b": "390bc78d10df7df5",
    "colbertv2": "82e2762e320663f3",
    "qwen3-embedding-0.6b": "054dfa0b69247a39",
    "qwen3-embedding-4b": "054dfa0b69247a39",
    "qwen3-embedding-8b": "054dfa0b69247a39",
    "nv-embed-v2": "8c71c545e14ff931",
    "gritlm-7b": "fce6c4f3db2ee35d",
    "pplx-embed-4b": "aec5eb5c7528e605",
    "pplx-embed-0.6b": "aec5eb5c7528e605",
    "e5-mistral-7b": "2dbdf856120e6f11",
    "gte-qwen2-1.5b": "6e43061e3716a0d0",
    "gte-qwen2-7b": "6e43061e3716a0d0",
}
"""Fingerprint of every preset before collections had settings of their own, or as it was first."""

PLAIN = {
    "method": "library",
    "backbone": {"source": "somewhere"},
    "query_prompt": "Task: any. ",
    "prompt_form": "Task: {instruction}. ",
    "on_collections": {
        "arguana": {"query_instruction": "refute", "passage_instruction": "be refuted", "max_query_tokens": 300},
        "scifact": {"max_passage_tokens": 7},
    },
}


def fingerprint(config: RetrieverConfig) -> str:
    return IndexManifest(retriever=config, created="now").fingerprint


def library(name: str) -> LibraryRetriever:
    config = load_retriever(name)
    assert isinstance(config, LibraryRetriever)
    return config


def plain(**changes: Any) -> LibraryRetriever:
    return LibraryRetriever.model_validate({**PLAIN, **changes})


def test_what_a_collection_has_of_its_own() -> None:
    config = plain()
    own = config.on("ArguAna")
    assert (own.query_prompt, own.passage_prompt) == ("Task: refute. ", "Task: be refuted. ")
    assert (own.text.max_query_tokens, own.text.max_passage_tokens) == (300, 512)
    assert config.on("scifact") == plain(text={"max_passage_tokens": 7}, prompt_form=None, on_collections={})
    other = config.on("a collection of no account")
    assert other == plain(prompt_form=None, on_collections={}), "an index has only what it was made with"
    assert RETRIEVER_ADAPTER.validate_json(config.model_dump_json()) == config
    assert other.on("arguana") == other


def test_what_is_otherwise_is_in_the_fingerprint() -> None:
    config = plain()
    found = [fingerprint(config.on(name)) for name in ("arguana", "scifact", "nq")]
    assert len(set(found)) == 3
    assert found[2] == fingerprint(plain(prompt_form=None, on_collections={}))


def test_a_length_of_queries_is_that_of_late_interaction_too() -> None:
    config = library("colbertv2")
    assert config.on("nq").query_length is None
    own = config.on("arguana")
    assert (own.query_length, own.max_vectors("query"), own.max_vectors("passage")) == (300, 300, 180)


@pytest.mark.parametrize("name", preset_names())
def test_fingerprints_are_what_they_were(name: str) -> None:
    assert fingerprint(load_retriever(name).on("mine")) == BEFORE[name]


def test_other_methods_are_the_same_everywhere() -> None:
    for name in ("diffretriever-dream", "promptreps-llama3", "repllama-llama3", "bm25"):
        config = load_retriever(name)
        assert config.on("arguana") is config


def test_the_instructions_of_published_models() -> None:
    refute = "Given a claim, find documents that refute the claim"
    qwen = library("qwen3-embedding-8b")
    assert qwen.on("arguana").query_prompt == qwen.on("arguana").passage_prompt == f"Instruct: {refute}\nQuery:"
    assert qwen.on("nq").passage_prompt == ""
    assert qwen.on("msmarco").query_prompt == qwen.query_prompt, "the general one is that of MS MARCO"
    assert library("gritlm-7b").on("arguana").query_prompt == f"<|user|>\n{refute}\n<|embed|>\n"
    assert library("gritlm-7b").on("arguana").passage_prompt == "<|embed|>\n"
    assert library("e5-mistral-7b").on("arguana").passage_prompt == ""
    nv = library("nv-embed-v2").on("arguana").query_prompt
    assert nv == "Instruct: Given a claim, retrieve documents that support or refute the claim\nQuery: "


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_collections_that_exist(name: str) -> None:
    config = load_retriever(name)
    if isinstance(config, LibraryRetriever):
        assert config.on_collections.keys() <= FOLDERS.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_collections": {"nq": {"instruction": "x"}}}, "unknown key 'instruction' in OnCollection"),
        ({"on_collections": {"NQ": {"max_query_tokens": 3}}}, "write 'NQ' in lower case"),
        ({"prompt_form": None}, "arguana has an instruction, which needs a prompt_form"),
        ({"prompt_form": "Task: "}, r"prompt_form: there is no \{instruction\} in it"),
        ({"query_length": 5}, "query_length goes with vectors: token"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(**changes)
