"""Opening what a replica serves: the index, its encoder or only the encoder's tokenizer."""

from __future__ import annotations

from diffretriever.consent import trust_code
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.identity import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import with_places
from diffretriever.serving.answering import Answering
from diffretriever.serving.metrics import Metrics
from diffretriever.serving.planner import Planner
from schemas.jobs import SearchOptions
from schemas.retriever import Bm25Retriever, NeuralRetriever
from schemas.serve_config import ServeConfig


def open_index(config: ServeConfig) -> PassageIndex:
    """Open the latest version of the index to serve.

    Raises:
        ValueError: no index there, or one without an encoder.
    """
    index = PassageIndex.open(config.index)
    if isinstance(index.manifest.retriever, Bm25Retriever):
        raise ValueError(
            f"{config.index} is a BM25 index, which has no encoder to serve: search it with jobs/search.py"
        )
    return index


def open_encoder(config: ServeConfig, index: PassageIndex) -> Encoder:
    """Load the encoder that made the index.

    Raises:
        ValueError: the backbone found is not the one that made it; the message names what differs.
    """
    trust_code(config.trust_code)
    encoder = load_encoder(_retriever(config, index), config.device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    return encoder


def open_preparer(config: ServeConfig, index: PassageIndex) -> Preparer:
    """Load the tokenizer side of that encoder alone."""
    trust_code(config.trust_code)
    return load_preparer(_retriever(config, index))


def open_answering(config: ServeConfig, index: PassageIndex, preparer: Preparer, metrics: Metrics) -> Answering:
    """Return the steps around encoding and searching.

    Raises:
        ValueError: the selector cannot be used for this index.
    """
    return Answering(Planner(index, preparer, config.selector, config.limits), preparer, metrics)


def search_options(config: ServeConfig) -> SearchOptions:
    """Return what the searches of this application are opened with: a job's defaults."""
    return SearchOptions(index=config.index, memory_mb=config.memory_mb)


def _retriever(config: ServeConfig, index: PassageIndex) -> NeuralRetriever:
    retriever = index.manifest.retriever
    assert not isinstance(retriever, Bm25Retriever), "open_index refuses it"
    return with_places(retriever, config.backbone, config.adapter)
