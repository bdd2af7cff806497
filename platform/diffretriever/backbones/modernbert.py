"""ModernBERT (model card): a bidirectional encoder with rotary positions, whose layers look far or near.

Every third layer attends to the whole text, the others to a window of `local_attention` tokens around each token. The
window goes by columns of the batch, that is, by the order of a text's tokens, wherever their positions are: spread
slots see their neighbours in every layer. In a pass with nested slots, where what follows the slots must not move with
their number, it goes by the order that the tokens have without slots.

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
"""As published. transformers 5 reads these, and writes `layer_types` and `rope_parameters`."""
NEW_SPELLING = frozenset({"layer_types", "rope_parameters"})
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
            # As published, though the positions are rotary.
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
                # A second spelling of `norm_eps`, which the published code does not read.
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
        """Return the fields as a ModernBertConfig, which reads both spellings.

        Raises:
            ValueError: the config has neither of them whole.
        """
        config = checkpoint.config
        missing = OLD_SPELLING - config.keys()
        if missing and not config.keys() >= NEW_SPELLING:
            raise ValueError(f"{checkpoint.config_file}: '{min(missing)}' is missing")
        # transformers' own default of the padding token lies outside of a small vocabulary.
        return ModernBertConfig(**pick(config, REQUIRED | OPTIONAL), pad_token_id=config.get("pad_token_id"))

    @property
    def final_norm(self) -> nn.Module:
        """The norm after all layers."""
        norm: nn.Module = self.model.base_model.final_norm
        return norm

    @property
    def window(self) -> int:
        """How many tokens to either side the layers that look near see."""
        window: int = self.model.config.sliding_window
        return window

    def nested_attention(self, slots_BL: Tensor, real_BL: Tensor) -> Any:
        """Return the mask of each kind of layer; transformers would take a single one for both, without a window."""
        everywhere_BLL = super().nested_attention(slots_BL, real_BL)[:, 0]
        # Tokens after the slots are where they would be without them: they must not move with the number of slots.
        is_slot_BL = slots_BL >= 0
        place_BL = (real_BL & ~is_slot_BL).cumsum(dim=1) + torch.where(is_slot_BL, slots_BL, -1)
        distance_BLL = (place_BL[:, :, None] - place_BL[:, None, :]).abs()
        is_far_BLL = distance_BLL > self.window
        near_BLL = everywhere_BLL.masked_fill(is_far_BLL, torch.finfo(self.dtype).min)
        return {"full_attention": everywhere_BLL[:, None], "sliding_attention": near_BLL[:, None]}
