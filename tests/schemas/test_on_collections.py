"""Settings of a retriever that differ for one collection."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.collections.beir import FOLDERS
from diffretriever.presets import list_presets, load_retriever
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, LibraryRetriever

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


def library(name: str) -> LibraryRetriever:
    config = load_retriever(name)
    assert isinstance(config, LibraryRetriever)
    return config


def plain(**changes: Any) -> LibraryRetriever:
    return LibraryRetriever.model_validate({**PLAIN, **changes})


def test_settings_of_a_collection_replace_general_ones() -> None:
    config = plain()
    own = config.on("ArguAna")
    assert (own.query_prompt, own.passage_prompt) == ("Task: refute. ", "Task: be refuted. ")
    assert (own.text.max_query_tokens, own.text.max_passage_tokens) == (300, 512)
    assert config.on("scifact") == plain(text={"max_passage_tokens": 7}, prompt_form=None, on_collections={})
    other = config.on("a collection of no account")
    assert other == plain(prompt_form=None, on_collections={})
    assert RETRIEVER_ADAPTER.validate_json(config.model_dump_json()) == config
    assert other.on("arguana") == other


def test_the_fingerprint_covers_settings_of_the_collection() -> None:
    fingerprints = [
        IndexManifest(retriever=config, created="now").fingerprint
        for config in (*(plain().on(name) for name in ("arguana", "scifact", "nq")), plain().on("msmarco"))
    ]
    assert len(set(fingerprints)) == 3
    assert fingerprints[2] == fingerprints[3]


def test_a_query_limit_sets_the_length_of_late_interaction() -> None:
    config = library("colbertv2")
    assert config.on("nq").query_length is None
    own = config.on("arguana")
    assert (own.query_length, own.max_vectors("query"), own.max_vectors("passage")) == (300, 300, 180)


def test_the_instructions_of_published_models() -> None:
    refute = "Given a claim, find documents that refute the claim"
    qwen = library("qwen3-embedding-8b")
    assert qwen.on("arguana").query_prompt == qwen.on("arguana").passage_prompt == f"Instruct: {refute}\nQuery:"
    assert qwen.on("nq").passage_prompt == ""
    assert qwen.on("msmarco").query_prompt == qwen.query_prompt
    assert library("gritlm-7b").on("arguana").query_prompt == f"<|user|>\n{refute}\n<|embed|>\n"
    assert library("gritlm-7b").on("arguana").passage_prompt == "<|embed|>\n"
    assert library("e5-mistral-7b").on("arguana").passage_prompt == ""
    nv = library("nv-embed-v2").on("arguana").query_prompt
    assert nv == "Instruct: Given a claim, retrieve documents that support or refute the claim\nQuery: "


@pytest.mark.parametrize("name", list_presets())
def test_presets_have_settings_of_existing_collections(name: str) -> None:
    config = load_retriever(name)
    if isinstance(config, LibraryRetriever):
        assert config.on_collections.keys() <= FOLDERS.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_collections": {"nq": {"instruction": "x"}}}, "unknown key 'instruction' in OnCollection"),
        ({"on_collections": {"NQ": {"max_query_tokens": 3}}}, "write 'NQ' in lower case"),
        ({"prompt_form": None}, "arguana has an instruction: set prompt_form"),
        ({"prompt_form": "Task: "}, r"prompt_form: \{instruction\} is missing"),
        ({"query_length": 5}, "query_length needs vectors: token"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(**changes)
