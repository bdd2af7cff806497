"""Which retriever made an index, and the check that another one is the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from schemas.manifest import IndexManifest
from schemas.retriever import Bm25Retriever, NeuralRetriever

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone


def manifest_of(config: NeuralRetriever, backbone: Backbone) -> IndexManifest:
    """Describe a loaded encoder, its `auto` precision replaced by the one that was used."""
    dtype = str(backbone.dtype).removeprefix("torch.")
    resolved = config.model_copy(update={"backbone": config.backbone.model_copy(update={"dtype": dtype})})
    return IndexManifest(
        retriever=resolved,
        weights=backbone.weights_digest,
        hidden_size=backbone.hidden_size,
        vocab_size=backbone.vocab_size,
        created=_now(),
    )


def bm25_manifest(config: Bm25Retriever) -> IndexManifest:
    """Describe a BM25 index."""
    return IndexManifest(retriever=config, created=_now())


def check_same(index: IndexManifest, encoder: IndexManifest, uri: str) -> None:
    """Raise `ValueError` naming the fields in which `encoder` differs from the one that made the index."""
    if index.fingerprint == encoder.fingerprint:
        return
    differing = "\n  ".join(index.differences(encoder))
    raise ValueError(f"{uri} was made by another retriever (index != this one):\n  {differing}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
