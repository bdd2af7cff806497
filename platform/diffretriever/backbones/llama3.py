"""LLaMA 3: a causal decoder, a baseline of PromptReps (LLaMA 3 model card)."""

from __future__ import annotations

from transformers import LlamaForCausalLM

from diffretriever.backbones.checkpoint import ConfigFields
from diffretriever.backbones.decoder import FIXED, OPTIONAL, REQUIRED, DecoderBackbone


class Llama3Backbone(DecoderBackbone):
    """LLaMA 3. The scaled rotary embeddings of LLaMA 3.1 and later are an error."""

    family = "llama"
    module = LlamaForCausalLM
    is_causal = True
    turn_end = "<|eot_id|>"
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL | {"head_dim"},
        fixed=FIXED | {"attention_bias": (False,), "mlp_bias": (False,)},
        ignored=frozenset({"pretraining_tp"}),
    )
