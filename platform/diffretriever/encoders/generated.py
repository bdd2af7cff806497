"""PromptReps: one vector per greedily decoded token of an autoregressive model (paper §3.2, end).

Vector 0 is the state at the prompt's last token, the opening quote. Each further vector is the state after a decoded
token, as in the authors' `promptreps.py`.

Legend: B texts, A of them still decoding, L padded length, N most vectors of a text (K where they are
read in one pass), H hidden size, G ids whose logits are gathered, P tokens of a prefix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import DynamicCache

from diffretriever.backbones.decoding import compute_prefix, start_decoding
from diffretriever.backbones.device import to_device
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.logits import chosen_logits
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import NO_IDS, PreparedText, PromptedPreparer
from diffretriever.encoders.readout import SlotReadout, TextStates, content_ids, read_slots, represent_slots
from diffretriever.schemas.retriever import GeneratedRetriever, Side
from diffretriever.vectors.representations import Representations

if TYPE_CHECKING:
    from diffretriever.backbones.base import Backbone


class GeneratedPreparer(PromptedPreparer):
    """Frames a text with the prompt up to the opening quote, and reserves positions for the generated tokens."""

    config: GeneratedRetriever
    shares_prefix = True

    def default_slots(self, side: Side) -> int:
        """Return N, the maximum number of vectors of a text."""
        return self.config.max_tokens

    def reserved(self, slots: int) -> int:
        """Return N - 1: no token is generated after the last vector."""
        return slots - 1


class GeneratedEncoder(BackboneEncoder):
    """Decodes greedily and reads the hidden state and the logits of content ids at every step.

    The states of the prompt before the text are cached, so load a new encoder after a change of the weights. A query's
    budget replaces N.
    """

    config: GeneratedRetriever
    preparer: GeneratedPreparer
    preparer_class = GeneratedPreparer

    def __init__(self, config: GeneratedRetriever, backbone: Backbone, preparer: GeneratedPreparer) -> None:
        super().__init__(config, backbone, preparer)
        if not backbone.is_causal:
            raise ValueError(
                f"the backbone's family '{backbone.family}' is not causal, so it cannot generate token by token: "
                "use Qwen2.5 or LLaMA 3, or the method `masked`"
            )
        self.whole_text_backbone = None
        self._prefixes: dict[bytes, DynamicCache] = {}

    def encode_batch(self, texts: Sequence[PreparedText]) -> SlotReadout:
        """Encode one batch: a pass over its texts, then up to N - 1 decoding steps."""
        with torch.inference_mode():
            hidden_BNH, fed_BN = self._decode(texts, _shared_prefix(texts))
            content = content_ids(texts, self.config, self.backbone.slot_layers)
            logits_BNG = chosen_logits(
                self.backbone.output_projection,
                self.backbone.head_input(hidden_BNH),
                to_device(content.gathered_BG, self.backbone.device),
            )
            return read_slots(TextStates(hidden_BNH, _valid(fed_BN), content, logits_BNG))

    def represent(self, texts: Sequence[PreparedText], computed: SlotReadout) -> Representations:
        """See the base class."""
        return represent_slots(texts, self.config, computed)

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """See the base class. Decode answers without gradients and dropout, then read all states in one pass.

        The states equal those of `encode_batch` up to rounding.
        """
        model = self.backbone.model
        was_training = model.training
        model.eval()
        # Not inference_mode: buffers that the model caches must be usable with gradients.
        with torch.no_grad():
            # No cached prefix: its states belong to earlier weights.
            _, fed_BK = self._decode(texts, NO_IDS)
        model.train(was_training)
        valid_BK = _valid(fed_BK)
        answers = [fed_K[valid_K][1:].numpy() for fed_K, valid_K in zip(fed_BK, valid_BK, strict=True)]
        rows = [np.concatenate([text.input_ids, answer]) for text, answer in zip(texts, answers, strict=True)]
        ids_BL, mask_BL = pad_right(rows, self.backbone.vocabulary.pad_token_id)
        prompts_B = torch.tensor([len(text.input_ids) for text in texts])
        # A missing vector repeats the text's first position.
        steps_BK = torch.arange(valid_BK.shape[1]) * valid_BK
        content = content_ids(texts, self.config, self.backbone.slot_layers)
        positions_BK = prompts_B[:, None] - 1 + steps_BK
        hidden_BKH, logits_BKG = self.backbone.forward(ids_BL, mask_BL, positions_BK, content.gathered_BG)
        return TextStates(hidden_BKH, valid_BK, content, logits_BKG)

    def _decode(self, texts: Sequence[PreparedText], prefix_P: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states [B, N, H] on the device, and the tokens fed for them, int64 [B, N] on the CPU.

        The token is -1 in column 0, the state of the prompt's last token, and after a text's end, where states are 0.
        """
        key = prefix_P.tobytes()
        if key not in self._prefixes:
            self._prefixes[key] = compute_prefix(self.backbone, torch.tensor(prefix_P))
        ids_BL, mask_BL = pad_right([text.input_ids[len(prefix_P) :][::-1] for text in texts], 0)
        decoding = start_decoding(self.backbone, self._prefixes[key], ids_BL.flip(1), mask_BL.flip(1))
        cap_B = torch.tensor([text.slots for text in texts])
        fed_BN = torch.full((len(texts), int(cap_B.max())), -1)
        hidden_BNH = decoding.hidden_BH.new_zeros(*fed_BN.shape, decoding.hidden_BH.shape[1])
        hidden_BNH[:, 0] = decoding.hidden_BH
        active_A, steps = torch.arange(len(texts)), 1
        for step in range(1, fed_BN.shape[1]):
            tokens_A = decoding.next_tokens().cpu()
            goes_on_A = (cap_B[active_A] > step) & ~self._stops[tokens_A]
            if not goes_on_A.any():
                break
            if not goes_on_A.all():
                (kept_A,) = goes_on_A.nonzero(as_tuple=True)
                decoding.keep(kept_A)
                active_A, tokens_A = active_A[kept_A], tokens_A[kept_A]
            fed_BN[active_A, step] = tokens_A
            hidden_BNH[to_device(active_A, hidden_BNH.device), step] = decoding.feed(tokens_A)
            steps = step + 1
        return hidden_BNH[:, :steps], fed_BN[:, :steps]

    @cached_property
    def _stops(self) -> torch.Tensor:
        """The tokens that end an answer and have no vector, bool [V] on the CPU.

        `quote`: tokens that contain `"`, the end of the turn and of the sequence (paper §3.2; original PromptReps).
        `cap-then-cut`: special tokens and the bare quote, as in the authors' zero-shot code.
        """
        vocabulary = self.backbone.vocabulary
        stops: list[int | None] = []
        if self.config.stop == "quote":
            texts = vocabulary.tokenizer.batch_decode([[token] for token in range(len(vocabulary.tokenizer))])
            quotes = [token for token, text in enumerate(texts) if '"' in text]
            stops = [*quotes, vocabulary.eos_token_id, vocabulary.turn_end_id]
        elif self.config.stop == "cap-then-cut":
            stops = [*vocabulary.tokenizer.all_special_ids, vocabulary.quote_id]
        table_V = torch.zeros(self.backbone.vocab_size, dtype=torch.bool)
        table_V[[token for token in stops if token is not None]] = True
        return table_V


def _valid(fed_BN: torch.Tensor) -> torch.Tensor:
    valid_BN = fed_BN >= 0
    valid_BN[:, 0] = True
    return valid_BN


def _shared_prefix(texts: Sequence[PreparedText]) -> np.ndarray:
    """Return the shortest of the texts' prefixes, int32 [P]; empty if not all texts begin with it."""
    prefix_P = min((text.input_ids[: text.prefix_tokens] for text in texts), key=len)
    same = all(np.array_equal(text.input_ids[: len(prefix_P)], prefix_P) for text in texts)
    return prefix_P if same else NO_IDS
