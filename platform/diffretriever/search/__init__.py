"""Search: an index and its retriever's query side behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.schemas.retriever import is_neural
from diffretriever.schemas.search import SearchOptions

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.searcher import Searcher

__all__ = ["encoder_of", "open_searcher", "searcher_of"]


def open_searcher(index: str, options: SearchOptions | None = None, version: int | None = None) -> Searcher:
    """Open the index at a path or URI with the query encoder that its manifest describes.

    Raises:
        ValueError: there is no index, or its manifest does not match the backbone.

    Example:
        >>> searcher = dr.open_searcher("indexes/garden")
        >>> hits = searcher.search(["when do I cut roses?"], k=2, modes=["dense", "bm25"])
        >>> [passage_id for passage_id, score in hits["dense"][0]]
        ['roses', 'bread']
    """
    from diffretriever.index.table import PassageIndex

    return searcher_of(PassageIndex.open(index, version), options or SearchOptions(index=index))


def searcher_of(index: PassageIndex, options: SearchOptions, encoder: Encoder | None = None) -> Searcher:
    """Return the searcher of an open index; pass its encoder if it is already loaded. Raises as `open_searcher`."""
    from diffretriever.search.searcher import Searcher

    is_bm25 = not is_neural(index.manifest.retriever)
    return Searcher(index, options, None if is_bm25 else encoder_of(index, options, encoder))


def encoder_of(index: PassageIndex, options: SearchOptions, encoder: Encoder | None = None) -> Encoder:
    """Load the encoder of a neural index, or check that a loaded one matches. Raises as `open_searcher`."""
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import check_same, manifest_of
    from diffretriever.presets import with_weights

    retriever = index.manifest.retriever
    assert is_neural(retriever), "others have no encoder"
    loaded = encoder or load_encoder(with_weights(retriever, options.backbone, options.adapter), options.device)
    check_same(index.manifest, manifest_of(loaded), index.uri)
    return loaded
