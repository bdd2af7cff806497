"""Dream 7B (model card): Qwen2's architecture and tensor names with bidirectional attention."""

from __future__ import annotations

from dataclasses import replace

from diffretriever.backbones.qwen2 import Qwen2Backbone


class DreamBackbone(Qwen2Backbone):
    """Qwen2 without the causal mask and with a mask token. Its head predicts the *next* token.

    The public checkpoint's tokenizer is remote code; Qwen2's tokenizer reads the same vocabulary.
    """

    family = "Dream"
    is_causal = False
    fields = replace(Qwen2Backbone.fields, required=Qwen2Backbone.fields.required | {"mask_token_id"})
