"""An index over random representations, without Ray."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest

from diffretriever.collections import Passage
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import bm25_manifest, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.testing.checkpoints import write_random_checkpoint

WORDS = ["slot", "passage", "query", "vector", "mask", "corpus", "shard", "lance", "table", "heat", "wing", "slab"]
PASSAGES = [
    Passage(f"d{i}", f"title {WORDS[i % 12]}", " ".join(WORDS[(i * k) % 12] for k in range(1, 4 + i % 9)))
    for i in range(60)
]
QUERIES = ["heat in a slab", "mask slot vector", "the of and", "lance table shard corpus wing"]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = write_random_checkpoint("llada", tmp_path_factory.mktemp("llada"))
    config = load_retriever("diffretriever-llada", str(folder))
    assert not isinstance(config, Bm25Retriever)
    place = config.backbone.model_copy(update={"dtype": "float32"})
    return load_encoder(config.model_copy(update={"backbone": place}), "cpu")


@pytest.fixture(scope="session")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """Not to be changed."""
    return fill(encoder, str(tmp_path_factory.mktemp("index")))


def fill(encoder: Encoder, uri: str, prefix: str = "d") -> PassageIndex:
    """Write the passages in three fragments, to a new index or one that is there; a prefix is in their texts too."""
    made = PassageIndex.open(uri) if PassageIndex.exists(uri) else PassageIndex.create(uri, manifest_of(encoder))
    committer = Committer(made)
    for number, block in enumerate(_blocks(encoder, prefix)):
        committer.commit({str(number): write_block(made.uri, block)}, [])
    return made


@lru_cache(maxsize=8)
def _blocks(encoder: Encoder, prefix: str) -> list[pa.Table]:
    """Return the passages with what an encoder makes of them, three fragments: many tests want the same."""
    said = "" if prefix == "d" else f" {prefix}"
    passages = [Passage(prefix + p.id[1:], p.title, p.text + said) for p in PASSAGES]
    chunks = [passages[start : start + 25] for start in range(0, len(passages), 25)]
    made = [encoder.encode_passages([p.title for p in chunk], [p.text for p in chunk]) for chunk in chunks]
    return [join_columns(text_table(chunk, "c"), each.to_arrow()) for chunk, each in zip(chunks, made, strict=True)]


@pytest.fixture
def bm25_index(tmp_path: Path) -> PassageIndex:
    made = PassageIndex.create(str(tmp_path / "bm25"), bm25_manifest(Bm25Retriever()))
    Committer(made).commit({"all": write_block(made.uri, text_table(PASSAGES, "c"))}, [])
    return made
