"""BERT and its smaller kin, MiniLM among them: bidirectional encoders with learned absolute positions.

Legend: B batch, P positions, H hidden size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.vocabulary import EncoderVocabulary, require_files

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
    """BERT's vocabulary, in either of its files."""

    def read_tokenizer(self, folder: Path) -> Any:
        """Return the tokenizer in tokenizer.json, or else in vocab.txt.

        Raises:
            ValueError: Neither is there.
        """
        if not (folder / "tokenizer.json").is_file():
            require_files(folder, "vocab.txt")
        return BertTokenizer.from_pretrained(str(folder), local_files_only=True)


class BertBackbone(Backbone):
    """A BERT encoder with the head its checkpoint has.

    Sentence encoders were published without the masked-language head; the input embeddings then serve as
    the output projection, applied to the hidden state as it is.
    """

    family = "bert"
    is_causal = False
    turn_end = "[SEP]"
    vocabulary_class = BertVocabulary
    lora_targets = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
    packs = True
    ignored_tensors = r"(^|\.)pooler\.|embeddings\.position_ids$|^cls\.seq_relationship\."
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

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        self.head: Literal["mlm", "tied-embeddings"] = "mlm" if _has_mlm_head(checkpoint) else "tied-embeddings"
        """The checkpoint's own masked-language head, or its input embeddings in the place of one."""

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the class with or without the masked-language head, as the checkpoint has it."""
        return BertForMaskedLM if _has_mlm_head(checkpoint) else _BertWithoutPooler

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return a BertConfig."""
        return BertConfig(**pick(checkpoint.config, REQUIRED | DROPOUTS))

    @classmethod
    def checkpoint_name(cls, name: str, checkpoint: Checkpoint) -> str:
        """Return the checkpoint's name: with or without `bert.`, with LayerNorm's old names or new."""
        found = checkpoint.shapes
        if "embeddings.LayerNorm.gamma" in found or "bert.embeddings.LayerNorm.gamma" in found:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if name.startswith("cls."):
            return name
        bare = name.removeprefix("bert.")
        has_prefix = any(tensor.startswith("bert.") for tensor in found)
        return f"bert.{bare}" if has_prefix else bare

    @classmethod
    def check_loaded(cls, model: Any, checkpoint: Checkpoint) -> None:
        """Check that the masked-language head shares the input embeddings.

        Raises:
            ValueError: The weights hold a head of their own.
        """
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            raise ValueError(f"{checkpoint.folder}: the head's weights differ from the embeddings; tied is supported.")

    @property
    def final_norm(self) -> nn.Module:
        """That of the last layer."""
        norm: nn.Module = self.model.base_model.encoder.layer[-1].output.LayerNorm
        return norm

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return the hidden states after the masked-language head's own layer, where there is one."""
        if self.head == "tied-embeddings":
            return hidden_BPH
        states_BPH: Tensor = self.model.cls.predictions.transform(hidden_BPH)
        return states_BPH


class _BertWithoutPooler(BertModel):  # transformers is not typed here
    """BertModel without the layer over [CLS], which nothing here reads and some checkpoints lack."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)


def _has_mlm_head(checkpoint: Checkpoint) -> bool:
    return any(name.startswith("cls.predictions.") for name in checkpoint.shapes)
