"""Indexes of long documents in chunks: by the retriever's own tokens, synced, resumed, not measured by documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import diffretriever as dr
from diffretriever.pipelines.chunking import chunked, count_tokens
from diffretriever.schemas.retriever import TextConfig

SENTENCE = "Prune roses in the winter, when they sleep. "


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "long.md").write_text("# Roses\n\n" + "\n\n".join([SENTENCE * 3] * 8))
    (tmp_path / "notes" / "short.txt").write_text("Tomatoes like the sun.")
    return tmp_path / "notes"


@pytest.fixture(scope="module")
def retriever(folder_of: Callable[[str], Path]) -> dr.Retriever:
    made = dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), device="cpu")
    limits = TextConfig(max_passage_tokens=60)
    return dr.Retriever(made.config.model_copy(update={"text": limits}), device="cpu")


def ids(index: dr.Index) -> set[str]:
    return {passage for batch in index._table.batches(["id"], 100) for passage in batch.column("id").to_pylist()}


def test_files_are_in_chunks_that_are_read_whole(notes: Path, retriever: dr.Retriever, tmp_path: Path) -> None:
    index = dr.Index.create(tmp_path / "index", str(notes), retriever=retriever)
    count = partial(count_tokens, retriever.config.model_dump_json())
    found = {name: count(f"{index[name]['title']} {index[name]['text']}") for name in ids(index)}
    assert {name.partition("#")[0] for name in found} == {"long.md", "short.txt"}
    assert "short.txt" in found
    assert len(found) > 4
    assert 30 < max(found.values()) <= 60
    (notes / "long.md").write_text("# Roses\n\n" + "\n\n".join([SENTENCE * 3] * 2))
    summary = index.sync(str(notes))
    assert (summary.chunk, summary.encoded) == (60, 0)
    assert {"short.txt", "long.md#1"} < ids(index) < found.keys(), "chunks that are gone are deleted"
    assert len(index) + summary.deleted == len(found)
    (notes / "long.md").write_text("# Roses\n\nShort.")
    index.sync(str(notes))
    assert ids(index) == {"short.txt", "long.md"}


def test_whole_documents_are_asked_for(notes: Path, tmp_path: Path) -> None:
    whole = dr.Index.create(tmp_path / "whole", str(notes), retriever="bm25")
    assert ids(whole) == {"long.md", "short.txt"}
    parts = dr.Index.create(tmp_path / "parts", str(notes), retriever="bm25", chunk=40)
    assert "long.md#4" in ids(parts)
    assert parts.search("tomatoes", k=1).ids == ["short.txt"]
    texts = dr.Index.create(tmp_path / "texts", [{"id": "a", "text": SENTENCE * 9}], retriever="bm25", chunk=20)
    assert "a#2" in ids(texts)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        dr.Index.create(tmp_path / "none", ["x"], retriever="bm25", chunk=-1)


def test_special_tokens_take_room(notes: Path) -> None:
    made = chunked(dr.open_collection(str(notes)), None, dr.load_retriever("minilm-pooled"))
    assert made.tokens == 254  # type: ignore[attr-defined]
