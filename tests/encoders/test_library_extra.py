"""The library method where its extra is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from diffretriever.encoders import load_preparer
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever


def test_without_the_extra_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    without = {"sentence_transformers"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in without else find(name, *rest))
    with pytest.raises(ValueError, match=r"pip install 'diffretriever\[models\]'"):
        load_preparer(LibraryRetriever(backbone=BackboneConfig(source=str(tmp_path))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vectors": "token", "similarity": "dot", "pooling": "cls"}, "leave pooling and similarity out"),
        ({"vectors": "token", "pool_prompt": False}, "leave pool_prompt out"),
        ({"bidirectional": True, "remote_code": True}, "leave remote_code out"),
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LibraryRetriever(backbone=BackboneConfig(source="minilm"), **fields)
