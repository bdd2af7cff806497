"""PromptReps: the states from which an autoregressive model would answer, one a decoded token (paper §3.2, end).

Vector 0 is the state at the prompt's last token, the opening quote; each further one is the state after a token that
was decoded greedily, as in the authors' `promptreps.py`.

Legend: B texts, A of them still decoding, L padded length, N most vectors of a text (K where they are
read in one pass), H hidden size, G ids whose logits are needed, P tokens of a prefix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.decoding import Decoder, Prefix
from diffretriever.backbones.device import moved
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.logits import chosen_logits
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import NO_IDS, PreparedText, PromptedPreparer
from diffretriever.encoders.readout import SlotReadout, TextStates, content_ids, read_slots, represent_slots
from diffretriever.schemas.retriever import GeneratedRetriever, Side
from diffretriever.vectors.representations import Representations

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone


class GeneratedPreparer(PromptedPreparer):
    """Prompt, text, prompt up to the opening quote; room is kept for the tokens to be generated."""

    config: GeneratedRetriever
    shares_prefix = True

    def default_slots(self, side: Side) -> int:
        """N, the most vectors of a text, on both sides."""
        return self.config.max_tokens

    def reserved(self, slots: int) -> int:
        """Return N - 1, because the last vector needs no token after it."""
        return slots - 1


class GeneratedEncoder(BackboneEncoder):
    """Decodes greedily and reads the hidden state and the logits of content ids at every step.

    The prompt before the text is run once and kept for as long as the encoder lives: load another encoder for other
    weights. A query's own budget takes the place of N for it.
    """

    config: GeneratedRetriever
    preparer: GeneratedPreparer
    preparer_class = GeneratedPreparer
    reads_whole_texts = False

    def __init__(self, config: GeneratedRetriever, backbone: Backbone, preparer: GeneratedPreparer) -> None:
        super().__init__(config, backbone, preparer)
        self._decoder = Decoder(backbone)
        self._prefixes: dict[bytes, Prefix] = {}

    def encode_batch(self, texts: Sequence[PreparedText]) -> SlotReadout:
        """Encode one batch: a pass over its texts, then at most N - 1 steps of a token over those still decoding."""
        with torch.inference_mode():
            hidden_BNH, fed_BN = self._decode(texts, _shared_prefix(texts))
            content = content_ids(texts, self.config, self.backbone.slot_layers)
            logits_BNG = chosen_logits(
                self.backbone.output_projection,
                self.backbone.head_input(hidden_BNH),
                moved(content.gathered_BG, self.backbone.device),
            )
            return read_slots(TextStates(hidden_BNH, _valid(fed_BN), content, logits_BNG))

    def represent(self, texts: Sequence[PreparedText], computed: SlotReadout) -> Representations:
        """See the base class."""
        return represent_slots(texts, self.config, computed)

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """Return all states of each text, read in one pass over text and answer; see the base class.

        The answers are decoded first, without gradients and dropout. The states are those that `encode_batch` reads
        while it decodes, up to the rounding of sums.
        """
        model = self.backbone.model
        was_training = model.training
        model.eval()
        # Not inference_mode: what the model keeps from one pass for the next must be usable with gradients.
        with torch.no_grad():
            # The states of a kept prefix are those of other weights.
            _, fed_BK = self._decode(texts, NO_IDS)
        model.train(was_training)
        valid_BK = _valid(fed_BK)
        answers = [fed_K[valid_K][1:].numpy() for fed_K, valid_K in zip(fed_BK, valid_BK, strict=True)]
        rows = [np.concatenate([text.input_ids, answer]) for text, answer in zip(texts, answers, strict=True)]
        ids_BL, mask_BL = pad_right(rows, self.backbone.vocabulary.pad_token_id)
        prompts_B = torch.tensor([len(text.input_ids) for text in texts])
        # Where a text has fewer vectors any position of its own will do.
        steps_BK = torch.arange(valid_BK.shape[1]) * valid_BK
        content = content_ids(texts, self.config, self.backbone.slot_layers)
        positions_BK = prompts_B[:, None] - 1 + steps_BK
        hidden_BKH, logits_BKG = self.backbone.forward(ids_BL, mask_BL, positions_BK, content.gathered_BG)
        return TextStates(hidden_BKH, valid_BK, content, logits_BKG)

    def _decode(self, texts: Sequence[PreparedText], prefix_P: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states [B, N, H] on the device, and the tokens that led there, int64 [B, N] on the CPU.

        Column i is the token that is fed for state i: -1 in column 0, whose state is that of the prompt's last token,
        and where a text has ended, with a state of zeros. All texts begin with `prefix_P`, whose states are kept.
        """
        key = prefix_P.tobytes()
        if key not in self._prefixes:
            self._prefixes[key] = self._decoder.prefix(torch.tensor(prefix_P))
        ids_BL, mask_BL = pad_right([text.input_ids[len(prefix_P) :][::-1] for text in texts], 0)
        decoding = self._decoder.start(self._prefixes[key], ids_BL.flip(1), mask_BL.flip(1))
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
            hidden_BNH[moved(active_A, hidden_BNH.device), step] = decoding.feed(tokens_A)
            steps = step + 1
        return hidden_BNH[:, :steps], fed_BN[:, :steps]

    @cached_property
    def _stops(self) -> torch.Tensor:
        """The tokens that end an answer and have no vector, bool [V] on the CPU.

        `quote`: all whose text has a `"` in it, such as `".`, the end of the turn and the end of the sequence (paper
        §3.2, "until either a closing quote is produced"; so also the first PromptReps). `cap-then-cut`: the tokenizer's
        special tokens and the bare quote, but no other token with a quote, as in the authors' zero-shot code.
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
    """Return which states are vectors, bool [B, N]."""
    valid_BN = fed_BN >= 0
    valid_BN[:, 0] = True
    return valid_BN


def _shared_prefix(texts: Sequence[PreparedText]) -> np.ndarray:
    """Return the shortest prefix of the texts, int32 [P], if all begin with it; otherwise none."""
    prefix_P = min((text.input_ids[: text.prefix_tokens] for text in texts), key=len)
    same = all(np.array_equal(text.input_ids[: len(prefix_P)], prefix_P) for text in texts)
    return prefix_P if same else NO_IDS
