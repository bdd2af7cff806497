"""ModernBERT (model card): a bidirectional encoder with rotary positions, and global or local attention.

Every third layer has global attention, the others a window of `local_attention` tokens. Distances in the window are
those of the token order, not of position ids, so spread slots attend to their neighbours. With nested slots, the order
ignores the slots, so that later tokens do not depend on their number.

Legend: B batch, L padded length, P positions, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.encoder import EncoderBackbone

REQUIRED = frozenset(
    {
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "local_attention",
        "max_position_embeddings",
        "norm_eps",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    }
)
OLD_SPELLING = frozenset({"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"})
"""Field names of published configs."""
NEW_SPELLING = frozenset({"layer_types", "rope_parameters"})
"""Field names in configs written by transformers 5."""
OPTIONAL = (
    OLD_SPELLING
    | NEW_SPELLING
    | {
        "attention_bias",
        "classifier_activation",
        "classifier_bias",
        "decoder_bias",
        "mlp_bias",
        "norm_bias",
    }
)


class ModernBertBackbone(EncoderBackbone):
    """A ModernBERT encoder."""

    family = "modernbert"
    lora_targets = ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
    ignored_tensors = r"rotary_emb\.inv_freq$"
    with_head = ModernBertForMaskedLM
    without_head = ModernBertModel
    head_layer = "head"
    prefix = "model."
    head_prefixes = ("head.", "decoder.")
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL,
        fixed={
            # The published value, though positions are rotary.
            "position_embedding_type": ("absolute",),
            "rope_scaling": (None,),
            "tie_word_embeddings": (True,),
        },
        ignored=frozenset(
            {
                "attention_dropout",
                "classifier_dropout",
                "classifier_pooling",
                "cls_token_id",
                "deterministic_flash_attn",
                "embedding_dropout",
                "gradient_checkpointing",
                "id2label",
                "initializer_cutoff_factor",
                "label2id",
                # Another name of `norm_eps`, which the published code ignores.
                "layer_norm_eps",
                "mlp_dropout",
                "reference_compile",
                "repad_logits_with_grad",
                "sep_token_id",
                "sparse_pred_ignore_index",
                "sparse_prediction",
            }
        ),
    )

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return a ModernBertConfig, which accepts old and new field names.

        Raises:
            ValueError: Both the old and the new fields are incomplete.
        """
        config = checkpoint.config
        missing = OLD_SPELLING - config.keys()
        if missing and not config.keys() >= NEW_SPELLING:
            raise ValueError(f"{checkpoint.config_file}: '{min(missing)}' is missing")
        # transformers' default padding token is outside of small vocabularies.
        return ModernBertConfig(**pick(config, REQUIRED | OPTIONAL), pad_token_id=config.get("pad_token_id"))

    @property
    def final_norm(self) -> nn.Module:
        """The norm after all layers."""
        norm: nn.Module = self.model.base_model.final_norm
        return norm

    @property
    def window(self) -> int:
        """Number of tokens to either side in layers with local attention."""
        window: int = self.model.config.sliding_window
        return window

    def nested_attention(self, slots_BL: Tensor, real_BL: Tensor) -> Any:
        """Return one mask for global and one for local attention."""
        global_BLL = super().nested_attention(slots_BL, real_BL)[:, 0]
        # Slots do not shift the tokens after them.
        is_slot_BL = slots_BL >= 0
        index_BL = (real_BL & ~is_slot_BL).cumsum(dim=1) + torch.where(is_slot_BL, slots_BL, -1)
        distance_BLL = (index_BL[:, :, None] - index_BL[:, None, :]).abs()
        is_far_BLL = distance_BLL > self.window
        local_BLL = global_BLL.masked_fill(is_far_BLL, torch.finfo(self.dtype).min)
        return {"full_attention": global_BLL[:, None], "sliding_attention": local_BLL[:, None]}
