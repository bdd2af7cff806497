"""Qwen2.5: a causal decoder, the backbone of PromptReps and of the dense baselines (Qwen2.5 model card)."""

from __future__ import annotations

from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from diffretriever.backbones.checkpoint import ConfigFields
from diffretriever.backbones.decoder import FIXED, OPTIONAL, REQUIRED, DecoderBackbone
from diffretriever.backbones.vocabulary import Vocabulary


class Qwen2Vocabulary(Vocabulary):
    """Qwen2's vocabulary, in tokenizer.json or in two files (Dream)."""

    older_tokenizer = Qwen2Tokenizer
    older_files = ("vocab.json", "merges.txt")


class Qwen2Backbone(DecoderBackbone):
    """Qwen2.5."""

    family = "qwen2"
    module = Qwen2ForCausalLM
    is_causal = True
    turn_end = "<|im_end|>"
    vocabulary_class = Qwen2Vocabulary
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL,
        fixed=FIXED | {"use_sliding_window": (False,), "use_mrope": (False,)},
        ignored=frozenset({"max_window_layers", "sliding_window"}),
    )
