"""Backbones compute final hidden states at given positions, and logits of given tokens there.

Each model architecture has a file with a `Backbone` class and a line in `FAMILIES`.
"""

from __future__ import annotations

FAMILIES: dict[str, str] = {
    "Dream": "diffretriever.backbones.dream:DreamBackbone",
    "llada": "diffretriever.backbones.llada:LladaBackbone",
    "qwen2": "diffretriever.backbones.qwen2:Qwen2Backbone",
    "llama": "diffretriever.backbones.llama3:Llama3Backbone",
    "bert": "diffretriever.backbones.bert:BertBackbone",
    "modernbert": "diffretriever.backbones.modernbert:ModernBertBackbone",
}
"""`model_type` of config.json → its class, as "module:class"."""
