"""Backbones compute final hidden states at given positions, and logits of given tokens there.

Each model architecture has a file with a `Backbone` class and a line in `FAMILIES`. Names are imported on first use, so
that importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffretriever.backbones.base import Backbone, BackboneOutput
    from diffretriever.backbones.loader import load_backbone, load_vocabulary
    from diffretriever.backbones.vocabulary import Vocabulary

__all__ = ["FAMILIES", "Backbone", "BackboneOutput", "Vocabulary", "load_backbone", "load_vocabulary"]

FAMILIES: dict[str, str] = {
    "Dream": "diffretriever.backbones.dream:DreamBackbone",
    "llada": "diffretriever.backbones.llada:LladaBackbone",
    "qwen2": "diffretriever.backbones.qwen2:Qwen2Backbone",
    "llama": "diffretriever.backbones.llama3:Llama3Backbone",
    "bert": "diffretriever.backbones.bert:BertBackbone",
    "modernbert": "diffretriever.backbones.modernbert:ModernBertBackbone",
}
"""`model_type` of config.json → its class, as "module:class"."""

_LAZY = {
    "Backbone": "base",
    "BackboneOutput": "base",
    "load_backbone": "loader",
    "load_vocabulary": "loader",
    "Vocabulary": "vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
