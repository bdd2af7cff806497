"""An adapter of ours says how it was trained: held against the retriever that is to run it.

A retriever that frames its texts or places its slots otherwise runs, and gives vectors the adapter was never trained
for.
"""

from __future__ import annotations

from pathlib import Path

from diffretriever.backbones.checkpoint import read_json
from schemas.retriever import BackboneRetriever
from schemas.training_manifest import MANIFEST_FILE

_FREE = frozenset(
    {
        "backbone",
        "budget",
        "confidence",
        "max_tokens",
        "schedule",
        "sparse_rounding",
        "sparse_topk",
        "steps",
        "stop_truncation",
        "text",
    }
)
"""What may differ from training: how much is read and stored, not what the backbone sees of a text."""


def check_trained_for(config: BackboneRetriever, folder: Path) -> None:
    """Hold `config` against the manifest in an adapter's folder, if there is one.

    Raises:
        ValueError: the adapter was trained for another method, prompt or place of the slots; names the field.
    """
    file = folder / MANIFEST_FILE
    if not file.is_file():
        return
    trained = read_json(file)["retriever"]
    here = config.model_dump(mode="json", exclude=set(_FREE))
    for name, value in here.items():
        if name in trained and trained[name] != value:
            raise ValueError(
                f"{file}: the adapter was trained with {name} {trained[name]!r}, the retriever has {value!r}: use the "
                "former, or another adapter"
            )
