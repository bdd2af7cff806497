"""Dream 7B (model card): Qwen2's architecture and tensor names, every position seeing all others."""

from __future__ import annotations

from dataclasses import replace

from diffretriever.backbones.qwen2 import Qwen2Backbone


class DreamBackbone(Qwen2Backbone):
    """Qwen2 without the causal mask, and with a mask token. Its head still predicts the *next* token.

    The tokenizer of the public checkpoint is remote code over Qwen2's vocabulary; Qwen2's own reads it.
    """

    family = "Dream"
    is_causal = False
    fields = replace(Qwen2Backbone.fields, required=Qwen2Backbone.fields.required | {"mask_token_id"})
