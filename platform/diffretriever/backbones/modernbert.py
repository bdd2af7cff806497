"""ModernBERT (model card): a bidirectional encoder with rotary positions, whose layers look far or near.

Every third layer attends to the whole text, the others to a window of `local_attention` tokens around each token. The
window goes by columns of the batch, that is, by the order of a text's tokens, wherever their positions are: spread
slots see their neighbours in every layer. In a pass with nested slots, where what follows the slots must not move with
their number, it goes by the order that the tokens have without slots.

Legend: B batch, L padded length, P positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.decoder import check_plain_rope, check_rope_base, plain_rope
from diffretriever.backbones.encoder import EncoderBackbone

REQUIRED = frozenset(
    {
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "local_attention",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    }
)
OPTIONAL = frozenset(
    {"attention_bias", "classifier_activation", "classifier_bias", "decoder_bias", "mlp_bias", "norm_bias"}
)
SPELLED_TWICE = frozenset(
    {
        "global_attn_every_n_layers",
        "global_rope_theta",
        "layer_norm_eps",
        "layer_types",
        "local_rope_theta",
        "norm_eps",
        "rope_parameters",
    }
)
"""Fields that say the same in an old and a new spelling; a config may have both, if they agree."""
ROPE_THETA = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Kind of a layer → the old spelling of its rotary base."""


class ModernBertBackbone(EncoderBackbone):
    """A ModernBERT encoder."""

    family = "modernbert"
    lora_targets = ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
    ignored_tensors = r"rotary_emb\.inv_freq$"
    prefix = "model."
    head_prefixes = ("head.", "decoder.")
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL | SPELLED_TWICE,
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
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the class with or without the masked-language head."""
        return ModernBertForMaskedLM if cls.is_with_head(checkpoint) else ModernBertModel

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return a ModernBertConfig with everything in its new spelling."""
        config, file = checkpoint.config, checkpoint.config_file
        kinds = _layer_types(config, file)
        return ModernBertConfig(
            **pick(config, REQUIRED | OPTIONAL),
            norm_eps=_agreed(file, norm_eps=config.get("norm_eps"), layer_norm_eps=config.get("layer_norm_eps")),
            layer_types=kinds,
            rope_parameters={kind: plain_rope(_rope_base(kind, config, file)) for kind in ROPE_THETA},
            # transformers' own default lies outside of a small vocabulary.
            pad_token_id=config.get("pad_token_id"),
        )

    @classmethod
    def check_loaded(cls, model: Any, checkpoint: Checkpoint) -> None:
        """Check the rotary bases and the head, and that `local_attention` counts both sides of the window.

        Raises:
            ValueError: The weights have a separate head, or the installed transformers reads a setting otherwise.
        """
        config, file = checkpoint.config, checkpoint.config_file
        for kind in set(_layer_types(config, file)):
            inv_freq = getattr(model.base_model.rotary_emb, f"{kind}_inv_freq")
            check_rope_base(inv_freq, _rope_base(kind, config, file), file)
        if model.config.sliding_window != config["local_attention"] // 2:
            raise ValueError(
                f"{file}: the loaded model looks {model.config.sliding_window} tokens to each side, 'local_attention' "
                f"is {config['local_attention']} tokens in all: install transformers in the version of constraints.txt."
            )
        super().check_loaded(model, checkpoint)

    @property
    def final_norm(self) -> nn.Module:
        """The norm after all layers."""
        norm: nn.Module = self.model.base_model.final_norm
        return norm

    @property
    def head_layer(self) -> nn.Module:
        """The dense layer, activation and norm of the masked-language head."""
        layer: nn.Module = self.model.head
        return layer

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


def _layer_types(config: Mapping[str, Any], file: Path) -> list[str]:
    layers, every = config["num_hidden_layers"], config.get("global_attn_every_n_layers")
    old = ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)] if every else None
    kinds: list[str] = _agreed(file, layer_types=config.get("layer_types"), global_attn_every_n_layers=old)
    if len(kinds) != layers or not set(kinds) <= ROPE_THETA.keys():
        raise ValueError(
            f"{file}: field 'layer_types' is {kinds!r}; {layers} of {' or '.join(map(repr, ROPE_THETA))} are needed."
        )
    return kinds


def _rope_base(kind: str, config: Mapping[str, Any], file: Path) -> float:
    rope = config.get("rope_parameters") or {}
    if not rope.keys() <= ROPE_THETA.keys():
        raise ValueError(f"{file}: field 'rope_parameters' is {rope!r}; it needs {' and '.join(ROPE_THETA)}.")
    settings = rope.get(kind) or {}
    check_plain_rope(settings, "rope_parameters", file)
    old = ROPE_THETA[kind]
    return float(_agreed(file, **{old: config.get(old), f"rope_parameters.{kind}": settings.get("rope_theta")}))


def _agreed(file: Path, **spellings: Any) -> Any:
    """Return the value of a setting with two spellings."""
    found = {name: value for name, value in spellings.items() if value is not None}
    first, *others = found.values() or [None]
    if first is None or any(value != first for value in others):
        names = " or ".join(map(repr, spellings))
        raise ValueError(f"{file}: exactly one value of {names} is needed, found {found}.")
    return first
