"""Search: an index and its retriever's query side behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.schemas.retriever import is_neural
from diffretriever.schemas.search import SearchOptions

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.base import Searcher

__all__ = ["encoder_of", "open_searcher", "searcher_of"]


def open_searcher(index: str, options: SearchOptions | None = None, version: int | None = None) -> Searcher:
    """Open the index at a path or URI with the query encoder that its manifest describes.

    Raises:
        ValueError: no index there, or the backbone found is not the one that made it; the message names what differs.
    """
    from diffretriever.index.table import PassageIndex

    return searcher_of(PassageIndex.open(index, version), options or SearchOptions(index=index))


def searcher_of(index: PassageIndex, options: SearchOptions, encoder: Encoder | None = None) -> Searcher:
    """Return the searcher of an opened index, whichever version that is; raises as `open_searcher`.

    Args:
        index: to search.
        options: how.
        encoder: of its retriever, where it is loaded already.
    """
    retriever = index.manifest.retriever
    if not is_neural(retriever):
        from diffretriever.search.bm25 import Bm25Searcher

        return Bm25Searcher(index)

    from diffretriever.search.neural import NeuralSearcher

    return NeuralSearcher(index, encoder_of(index, options, encoder), options)


def encoder_of(index: PassageIndex, options: SearchOptions, encoder: Encoder | None = None) -> Encoder:
    """Return the encoder that made an index of a neural retriever; raises as `open_searcher`.

    Args:
        index: says which.
        options: where its weights lie now, and on which device they are to be.
        encoder: the same, where it is loaded already.
    """
    from diffretriever.encoders import load_encoder
    from diffretriever.index.manifest import check_same, manifest_of
    from diffretriever.presets import with_places

    retriever = index.manifest.retriever
    assert is_neural(retriever), "others have no encoder"
    found = encoder or load_encoder(with_places(retriever, options.backbone, options.adapter), options.device)
    check_same(index.manifest, manifest_of(found), index.uri)
    return found
