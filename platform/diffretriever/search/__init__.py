"""Search: an index and its retriever's query side behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.retriever import is_neural
from schemas.search import SearchOptions

if TYPE_CHECKING:
    from diffretriever.search.base import Searcher

__all__ = ["open_searcher"]


def open_searcher(index: str, options: SearchOptions | None = None) -> Searcher:
    """Open the index at a path or URI with the query encoder that its manifest describes.

    Raises:
        ValueError: no index there, or the backbone found is not the one that made it; the message names what differs.
    """
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.bm25 import Bm25Searcher

    options = options or SearchOptions(index=index)
    opened = PassageIndex.open(index)
    retriever = opened.manifest.retriever
    if not is_neural(retriever):
        return Bm25Searcher(opened)

    from diffretriever.encoders import load_encoder
    from diffretriever.index.table import check_same, manifest_of
    from diffretriever.presets import with_places
    from diffretriever.search.neural import NeuralSearcher

    retriever = with_places(retriever, options.backbone, options.adapter)
    encoder = load_encoder(retriever, options.device)
    check_same(opened.manifest, manifest_of(encoder), opened.uri)
    return NeuralSearcher(opened, encoder, options)
