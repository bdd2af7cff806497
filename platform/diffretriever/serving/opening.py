"""Open the parts of a service: the index, its encoder, the service itself."""

from __future__ import annotations

from diffretriever.core.consent import trust_code
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import with_weights
from diffretriever.schemas.retriever import NeuralRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serving.backend import LocalBackend
from diffretriever.serving.measure import Measure, unmeasured
from diffretriever.serving.service import Service, open_budgets
from diffretriever.serving.snapshots import Snapshots, Version


def open_service(config: ServeConfig, measure: Measure = unmeasured) -> Service:
    """Return a service that encodes and searches in this process."""
    index = open_index(config)
    encoder = open_encoder(config, index, config.device_of(config.ingress))
    snapshots = Snapshots(SearchOptions(index=config.index), encoder.facts.device, measure=measure)
    snapshots.get(Version.of(index))
    return Service(config, index, encoder.preparer, LocalBackend(encoder, snapshots), measure)


def check_config(config: ServeConfig) -> None:
    """Raise ValueError if a replica could not start. Weights and derived files are not opened."""
    index = open_index(config)
    open_budgets(config, index, open_preparer(config, index))
    next(index.batches(["id"], 1), None)


def open_index(config: ServeConfig) -> PassageIndex:
    """Open the latest version of the index; raise ValueError if it has no encoder."""
    index = PassageIndex.open(config.index)
    retriever = index.manifest.retriever
    if not retriever.has_weights:
        raise ValueError(
            f"{config.index} is a {retriever.method} index, which has no encoder to serve: search it with "
            "jobs/search.py"
        )
    return index


def open_encoder(config: ServeConfig, index: PassageIndex, device: str) -> Encoder:
    """Load the index's encoder onto a device; raise ValueError if its backbone differs."""
    trust_code(config.trust_code)
    encoder = load_encoder(_retriever(config, index), device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    recorded = config.recorded
    if recorded is None:
        recorded = encoder.facts.device.type == "cuda" and encoder.can_record
    if recorded:
        encoder.record_passes()
    if config.batch_tokens is not None:
        encoder.tokens_per_batch = config.batch_tokens
    return encoder


def open_preparer(config: ServeConfig, index: PassageIndex) -> Preparer:
    """Load the encoder's tokenizer and prompts, without weights."""
    trust_code(config.trust_code)
    return load_preparer(_retriever(config, index))


def _retriever(config: ServeConfig, index: PassageIndex) -> NeuralRetriever:
    return with_weights(index.manifest.retriever, config.backbone, config.adapter)
