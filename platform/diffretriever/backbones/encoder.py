"""Base class of BERT and ModernBERT: bidirectional encoders with or without a masked-language head.

Legend: B batch, P positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.vocabulary import EncoderVocabulary


class EncoderBackbone(Backbone):
    """A bidirectional encoder.

    If a checkpoint has no masked-language head, as sentence encoders, the input embeddings are the output projection.
    """

    is_causal = False
    turn_end = "[SEP]"
    vocabulary_class = EncoderVocabulary
    with_head: ClassVar[Any]
    """The transformers class with the masked-language head."""
    without_head: ClassVar[Any]
    head_layer: ClassVar[str]
    """Name of the head's module of dense layer, activation and norm."""
    prefix: ClassVar[str]
    """Prefix of the encoder's tensors, which some checkpoints omit."""
    head_prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of the head's tensors; the first is that of `head_layer`."""

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the class with or without a masked-language head, depending on the checkpoint."""
        has_head = any(name.startswith(cls.head_prefixes[0]) for name in checkpoint.shapes)
        return cls.with_head if has_head else cls.without_head

    @classmethod
    def checkpoint_names(cls, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, str]:
        """Map names of tensors to those with or without the prefix, as the checkpoint has them."""
        prefix = cls.prefix if any(tensor.startswith(cls.prefix) for tensor in checkpoint.shapes) else ""
        return {
            name: name if name.startswith(cls.head_prefixes) else prefix + name.removeprefix(cls.prefix)
            for name in names
        }

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return the hidden states after the masked-language head's dense layer, if there is one."""
        if self.model.get_output_embeddings() is None:
            return hidden_BPH
        states_BPH: Tensor = self.model.get_submodule(self.head_layer)(hidden_BPH)
        return states_BPH
