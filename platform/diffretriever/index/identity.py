"""Which retriever made an index, and the check that another one is the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from schemas.manifest import IndexManifest
from schemas.retriever import Bm25Retriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder


def manifest_of(encoder: Encoder) -> IndexManifest:
    """Describe a loaded encoder, its `auto` precision replaced by the one that was used."""
    config, facts = encoder.config, encoder.facts
    resolved = config.model_copy(update={"backbone": config.backbone.model_copy(update={"dtype": facts.dtype})})
    return IndexManifest(
        retriever=resolved,
        weights=facts.weights,
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
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
