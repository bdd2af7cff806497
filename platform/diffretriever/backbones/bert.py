"""BERT and MiniLM: bidirectional encoders with learned absolute positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.encoder import EncoderBackbone
from diffretriever.backbones.vocabulary import EncoderVocabulary

REQUIRED = frozenset(
    {
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "type_vocab_size",
        "vocab_size",
    }
)
DROPOUTS = frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob"})


class BertVocabulary(EncoderVocabulary):
    """BERT's vocabulary, in tokenizer.json or vocab.txt."""

    older_tokenizer = BertTokenizer
    older_files = ("vocab.txt",)


class _BertWithoutPooler(BertModel):  # transformers is not typed here
    """BertModel without the pooler, which is not used here and which some checkpoints lack."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)


class BertBackbone(EncoderBackbone):
    """A BERT encoder with learned absolute positions."""

    family = "bert"
    vocabulary_class = BertVocabulary
    lora_targets = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
    ignored_tensors = r"(^|\.)pooler\.|embeddings\.position_ids$|^cls\.seq_relationship\."
    with_head = BertForMaskedLM
    without_head = _BertWithoutPooler
    head_layer = "cls.predictions.transform"
    prefix = "bert."
    head_prefixes = ("cls.predictions.",)
    fields = ConfigFields(
        required=REQUIRED,
        optional=DROPOUTS,
        fixed={
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        },
        ignored=frozenset(
            {
                "classifier_dropout",
                "directionality",
                "gradient_checkpointing",
                "id2label",
                "label2id",
                "pooler_fc_size",
                "pooler_num_attention_heads",
                "pooler_num_fc_layers",
                "pooler_size_per_head",
                "pooler_type",
            }
        ),
    )

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return a BertConfig."""
        return BertConfig(**pick(checkpoint.config, REQUIRED | DROPOUTS))

    @classmethod
    def checkpoint_names(cls, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, str]:
        """Map names of tensors to those with or without `bert.`, and with old or new names of LayerNorm."""
        mapped = super().checkpoint_names(names, checkpoint)
        if any(tensor.endswith("embeddings.LayerNorm.gamma") for tensor in checkpoint.shapes):
            for name, new in mapped.items():
                mapped[name] = new.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
        return mapped

    @property
    def final_norm(self) -> nn.Module:
        """The norm of the last layer."""
        norm: nn.Module = self.model.base_model.encoder.layer[-1].output.LayerNorm
        return norm
