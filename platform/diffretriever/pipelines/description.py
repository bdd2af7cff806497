"""An encoder's manifest, found where encoders run, before any work is given out."""

from __future__ import annotations

import ray

from diffretriever.pipelines.cluster import EncoderPool
from schemas.manifest import IndexManifest
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever


def describe_encoder(retriever: NeuralRetriever, pool: EncoderPool) -> IndexManifest:
    """Load the encoder in a Ray worker and return its manifest.

    Raises:
        ValueError: it cannot be loaded, with the reason.
    """
    task = _describe.options(num_cpus=pool.cpus, num_gpus=pool.gpus)
    try:
        return IndexManifest.model_validate_json(ray.get(task.remote(retriever.model_dump_json(), pool.device)))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise ValueError(str(error.cause)) from None
        raise


@ray.remote
def _describe(retriever_json: str, device: str) -> str:
    from diffretriever.encoders import load_encoder
    from diffretriever.index.identity import manifest_of

    config: NeuralRetriever = RETRIEVER_ADAPTER.validate_json(retriever_json)  # type: ignore[assignment]
    return manifest_of(load_encoder(config, device)).model_dump_json()
