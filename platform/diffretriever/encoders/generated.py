"""The tokenizer's part of PromptReps: a text inside its prompt, and the tokens that end a generated answer.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.base import chosen_logits
from diffretriever.backbones.decoding import Decoder, Prefix
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.framing import Following, PromptedPreparer
from diffretriever.encoders.impacts import content_ids, pooled_impacts, strongest_words
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from schemas.retriever import GeneratedRetriever, Side

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone, Vocabulary


class GeneratedPreparer(PromptedPreparer):
    """Prompt, text, prompt up to the opening quote; room is kept for the tokens to be generated (reference §1.6)."""

    config: GeneratedRetriever

    def default_slots(self, side: Side) -> int:
        """N, the most vectors of a text, on both sides."""
        return self.config.max_tokens

    def _following(self, slots: int) -> Following:
        # The last vector needs no token after it.
        return Following(slots - 1, f"{slots - 1} generated tokens", "fewer generated tokens (max_tokens)")

    def _place(self, text: str, row: list[int], side: Side, slots: int) -> PreparedText:
        left, right = self._frame(side, slots)
        # A bare frame makes nothing of an empty text: a pad then stands for it, as every text has a vector.
        ids = [*left, *row, *right] or [self.vocabulary.pad_token_id]
        content_ids, variant_ids = self._content_words(text)
        # At least one token is left to run after the prefix.
        shared = min(len(left), len(ids) - 1)
        return PreparedText(np.array(ids, np.int32), slots, content_ids, variant_ids, len(row), shared)


def closing_tokens(vocabulary: Vocabulary, vocab_size: int) -> torch.Tensor:
    """Return bool [V]: the tokens that close an answer, before they are fed.

    These are all whose text has a `"` in it, such as `".`, the end of the turn and the end of the sequence
    (paper §3.2, "until either a closing quote is produced"; so also the first PromptReps, reference §2.6).
    """
    tokenizer = vocabulary.tokenizer
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    quotes = [token for token, text in enumerate(texts) if '"' in text]
    ends = [token for token in (vocabulary.eos_token_id, vocabulary.turn_end_id) if token is not None]
    return _table([*quotes, *ends], vocab_size)


def cut_tokens(vocabulary: Vocabulary, vocab_size: int) -> torch.Tensor:
    """Return bool [V]: the tokens from which on the authors' zero-shot code leaves vectors out, after all are fed.

    These are the tokenizer's special tokens and the bare quote, but no other token with a quote (reference §2.6).
    """
    quote = [] if vocabulary.quote_id is None else [vocabulary.quote_id]
    return _table([*vocabulary.tokenizer.all_special_ids, *quote], vocab_size)


def _table(tokens: list[int], vocab_size: int) -> torch.Tensor:
    table_V = torch.zeros(vocab_size, dtype=torch.bool)
    table_V[tokens] = True
    return table_V


class GeneratedEncoder(BackboneEncoder):
    """Decodes greedily and reads the hidden state and the logits of content ids at every step.

    The prompt before the text is run once and kept for as long as the encoder lives: load another encoder for other
    weights. A query's own budget takes the place of N for it.
    """

    config: GeneratedRetriever
    preparer: GeneratedPreparer

    def __init__(self, config: GeneratedRetriever, backbone: Backbone, preparer: GeneratedPreparer) -> None:
        super().__init__(config, backbone, preparer)
        self._decoder = Decoder(backbone)
        self._prefixes: dict[bytes, Prefix] = {}

    @classmethod
    def make_preparer(cls, config: GeneratedRetriever, vocabulary: Vocabulary) -> GeneratedPreparer:
        """Return the preparer that writes the prompt."""
        return GeneratedPreparer(vocabulary, config)

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """One pass over the texts, then at most N - 1 steps of one token, each over the texts still decoding."""
        groups: dict[bytes, list[int]] = {}
        for row, text in enumerate(texts):
            groups.setdefault(_prefix_of(text).tobytes(), []).append(row)
        with torch.inference_mode():
            parts = [self._encode_group([texts[row] for row in rows]) for rows in groups.values()]
        order = np.argsort([row for rows in groups.values() for row in rows])
        return Representations.concatenate(parts).take(order)

    def _encode_group(self, texts: Sequence[PreparedText]) -> Representations:
        hidden_BNH, valid_BN = self._decode(texts)
        content = content_ids(texts, fold_space_variants=self.config.content_words.fold_space_variants)
        logits_BNG = chosen_logits(
            self.backbone.output_projection,
            self.backbone.head_input(hidden_BNH),
            content.gathered_BG.to(self.backbone.device),
        )
        logits_BNT = content.fold(logits_BNG.float().cpu())
        impacts = pooled_impacts(
            content, logits_BNT, valid_BN, topk=self.config.sparse_topk, rounding=self.config.sparse_rounding
        )
        return Representations(
            vectors_MH=unit_float16(hidden_BNH.cpu()[valid_BN]),
            offsets=offsets_of(valid_BN.sum(1).numpy()),
            slot_tokens=strongest_words(content, logits_BNT)[valid_BN].numpy(),
            impact_ids=impacts[0],
            impact_weights=impacts[1],
            impact_offsets=impacts[2],
            n_tokens=np.array([text.n_tokens for text in texts], np.int32),
        )

    def decoded_tokens(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which tokens are fed one after the other, and which states are vectors, both [B, N] on the CPU.

        Column i is the token, int64, that is fed for state i: -1 in column 0, whose state is that of the prompt's last
        token, and where a text has ended. Texts share their prefix, which is kept; see `encode_batch`.
        """
        states, fed_BN = self._follow(texts)
        fed_BN = fed_BN[:, : len(states)]
        return fed_BN, self._valid(fed_BN)

    def _decode(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
        """States [B, N, H] on the device, and which of them are vectors of the text, bool [B, N] on the CPU."""
        states, fed_BN = self._follow(texts)
        return _placed(states, fed_BN), self._valid(fed_BN[:, : len(states)])

    def _follow(self, texts: Sequence[PreparedText]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The states [A, H] of each step, and the tokens that led there, int64 [B, N] on the CPU."""
        decoding = self._decoder.start(self._prefix(_prefix_of(texts[0])), *_pad_left(texts))
        cap_B = torch.tensor([text.slots for text in texts])
        states = [decoding.hidden_BH]
        fed_BN = torch.full((len(texts), int(cap_B.max())), -1)
        active_A = torch.arange(len(texts))
        for step in range(1, fed_BN.shape[1]):
            tokens_A = decoding.next_tokens().cpu()
            goes_on_A = (cap_B[active_A] > step) & ~self._closing[tokens_A]
            if not goes_on_A.any():
                break
            if not goes_on_A.all():
                (kept_A,) = goes_on_A.nonzero(as_tuple=True)
                decoding.keep(kept_A)
                active_A, tokens_A = active_A[kept_A], tokens_A[kept_A]
            fed_BN[active_A, step] = tokens_A
            states.append(decoding.feed(tokens_A))
        return states, fed_BN

    def _valid(self, fed_BN: torch.Tensor) -> torch.Tensor:
        valid_BN = fed_BN >= 0
        cut_BN = self._cut[fed_BN.clamp(min=0)] & valid_BN
        valid_BN[:, 0] = True
        return valid_BN & (cut_BN.cumsum(1) == 0)

    def _prefix(self, ids_P: np.ndarray) -> Prefix:
        key = ids_P.tobytes()
        if key not in self._prefixes:
            self._prefixes[key] = self._decoder.prefix(torch.tensor(ids_P))
        return self._prefixes[key]

    @cached_property
    def _closing(self) -> torch.Tensor:
        """The tokens that end a text when they are predicted, bool [V] on the CPU."""
        if self.config.stop != "quote":
            return torch.zeros(self.backbone.vocab_size, dtype=torch.bool)
        return closing_tokens(self.backbone.vocabulary, self.backbone.vocab_size)

    @cached_property
    def _cut(self) -> torch.Tensor:
        """The tokens from which on vectors are left out in the end, bool [V] on the CPU."""
        if self.config.stop != "cap-then-cut":
            return torch.zeros(self.backbone.vocab_size, dtype=torch.bool)
        return cut_tokens(self.backbone.vocabulary, self.backbone.vocab_size)


def _prefix_of(text: PreparedText) -> np.ndarray:
    return text.input_ids[: text.prefix_tokens]


def _pad_left(texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes after the prefix, int64 [B, L], and the mask int64 [B, L] of real tokens."""
    reversed_ids = [text.input_ids[text.prefix_tokens :][::-1] for text in texts]
    ids_BL, mask_BL = pad_right(reversed_ids, 0)
    return ids_BL.flip(1), mask_BL.flip(1)


def _placed(states: Sequence[torch.Tensor], fed_BN: torch.Tensor) -> torch.Tensor:
    """Put the states [A, H] of each step into [B, N, H], zeros where a text had left."""
    hidden_BNH = states[0].new_zeros(len(fed_BN), len(states), states[0].shape[1])
    hidden_BNH[:, 0] = states[0]
    for step in range(1, len(states)):
        hidden_BNH[(fed_BN[:, step] >= 0).to(hidden_BNH.device), step] = states[step]
    return hidden_BNH
