"""A small index over a random model, and a service over it without a server."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from diffretriever.collections import Passage
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.serving.opening import open_service
from diffretriever.serving.service import Service
from diffretriever.testing.checkpoints import write_random_checkpoint

WORDS = ["slot", "passage", "query", "vector", "mask", "corpus", "shard", "lance", "table", "heat", "wing", "slab"]
PASSAGES = [
    Passage(f"d{i}", f"title {WORDS[i % 12]}", " ".join(WORDS[(i * k) % 12] for k in range(1, 4 + i % 9)))
    for i in range(60)
]
QUERIES = [
    "heat in a slab",
    "mask slot vector",
    "lance table shard corpus wing",
    "which passage holds the vector of a query whose mask is a slot in the table of the corpus on the shard of a wing",
]


def random_encoder(folder: Path, **fields: str) -> Encoder:
    """Return a small LLaDA in double the precision of its stored vectors; `fields` are others than the preset's."""
    config = load_retriever("diffretriever-llada", str(write_random_checkpoint("llada", folder)))
    assert not isinstance(config, Bm25Retriever)
    backbone = config.backbone.model_copy(update={"dtype": "float32"})
    return load_encoder(config.model_copy(update={"backbone": backbone, **fields}), "cpu")


def write_passages(encoder: Encoder, uri: str, passages: list[Passage], collection: str = "c") -> PassageIndex:
    """Add passages in one commit, to an index that is there or a new one."""
    made = PassageIndex.open(uri) if PassageIndex.exists(uri) else PassageIndex.create(uri, manifest_of(encoder))
    reps = encoder.encode_passages([p.title for p in passages], [p.text for p in passages]).to_arrow()
    table = text_table(passages, collection)
    for name in reps.schema.names:
        table = table.append_column(reps.schema.field(name), reps.column(name))
    Committer(made).commit({"all": write_block(uri, table)}, [])
    return made


def small_index(encoder: Encoder, uri: str) -> PassageIndex:
    """Write the passages in three fragments, the last of them of another collection."""
    for start, collection in ((0, "c"), (25, "c"), (50, "other's")):
        made = write_passages(encoder, uri, PASSAGES[start : min(start + 25, 50) if start < 50 else 60], collection)
    return made


def local_service(uri: str, **settings: object) -> Service:
    """Return a service that encodes and searches in this process, for clients that call it by Starlette's name."""
    return open_service(
        ServeConfig.model_validate({"index": uri, "device": "cpu", "hosts": ["testserver"], **settings})
    )


def served(uri: str, **settings: object) -> TestClient:
    """Return a client of the application over `local_service`, without keys."""
    return TestClient(make_api(local_service(uri, **settings), Keys(), None))
