"""Late interaction over a native backbone: one vector per token, or per cluster of a passage's tokens.

Vectors are the final hidden states of all tokens, special tokens included. `mean_share` adds the text's mean to each
vector, so that MaxSim also compares whole texts. Clustering runs on the CPU, without gradients: training uses tokens.

Legend: B texts of a batch, L padded length, M vectors of all texts, N tokens of a text, C its clusters, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, ward

from diffretriever.backbones.device import to_host
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.slot_layers import mean_state
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PrefixedPreparer, PreparedText
from diffretriever.encoders.readout import TextStates, stored_vectors, unit, unit_float16
from diffretriever.schemas.retriever import Side, TokensRetriever
from diffretriever.vectors.representations import Representations


class TokensPreparer(PrefixedPreparer):
    """Tokenises texts with their prefix; `slots` of a passage is its maximum number of clusters, otherwise 0."""

    config: TokensRetriever

    def default_slots(self, side: Side) -> int:
        """Return the maximum number of clusters; 0 for one vector per token."""
        return (self.config.clusters or 0) if side == "passage" else 0


class TokensEncoder(BackboneEncoder):
    """Encodes texts as normalised token states; with `clusters`, passages as the means of token clusters."""

    config: TokensRetriever
    preparer_class = TokensPreparer

    def encode_batch(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return vectors float16 [M, H], token counts [B], and, if texts are clustered, their means [B, H]."""
        with torch.inference_mode():
            hidden_BLH, is_text_BL = self._read(texts)
            means_BH = None
            if any(text.slots for text in texts):
                means_BH = to_host(mean_state(hidden_BLH, is_text_BL))
            elif self.config.mean_share:
                hidden_BLH = self._with_share(hidden_BLH, is_text_BL)
            return to_host(stored_vectors(hidden_BLH, is_text_BL)), is_text_BL.sum(1), means_BH

    def represent(
        self, texts: Sequence[PreparedText], computed: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
    ) -> Representations:
        """See the base class; clusters passages if the config asks for it."""
        vectors_MH, counts_B, means_BH = computed
        if means_BH is not None:
            parts = [
                clustered(tokens_NH.float(), text.slots or len(tokens_NH))
                for tokens_NH, text in zip(vectors_MH.split(counts_B.tolist()), texts, strict=True)
            ]
            counts_B = torch.tensor([len(part_CH) for part_CH in parts])
            means_MH = means_BH.repeat_interleave(counts_B, dim=0)
            vectors_MH = unit_float16(with_mean(torch.cat(parts), means_MH, self.config.mean_share))
        return Representations.of_vectors(vectors_MH.numpy(), counts_B.numpy(), [text.n_tokens for text in texts])

    def forward(self, texts: Sequence[PreparedText]) -> TextStates:
        """See the base class: all token states, floating [B, L, H], with the mean's share."""
        hidden_BLH, is_text_BL = self._read(texts)
        if self.config.mean_share:
            hidden_BLH = self._with_share(hidden_BLH, is_text_BL)
        return TextStates(hidden_BLH, is_text_BL)

    def _with_share(self, hidden_BLH: torch.Tensor, is_text_BL: torch.Tensor) -> torch.Tensor:
        return with_mean(hidden_BLH, mean_state(hidden_BLH, is_text_BL)[:, None], self.config.mean_share)

    def _read(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        positions_BL = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape)
        no_tokens = torch.zeros(0, dtype=torch.int64)
        hidden_BLH, _ = self.backbone.forward(ids_BL, mask_BL, positions_BL, no_tokens)
        return hidden_BLH, mask_BL.bool()


def with_mean(vectors_MH: torch.Tensor, means_MH: torch.Tensor, share: float) -> torch.Tensor:
    """Return share · mean + (1 - share) · vector, both normalised before, not after: float32 [..., H]."""
    return share * unit(means_MH) + (1 - share) * unit(vectors_MH)


def clustered(tokens_NH: torch.Tensor, max_clusters: int) -> torch.Tensor:
    """Cluster a text's token vectors by Ward's method (1963) and return the clusters' sums, float32 [C, H].

    C ≤ `max_clusters`; clusters are in the order of their first tokens. Shorter texts are returned as they are.
    """
    if len(tokens_NH) <= max_clusters:
        return tokens_NH
    labels_N = np.ones(len(tokens_NH), np.int32)
    # Values that are not finite stay in the sum: storing and searching reject them.
    if bool(tokens_NH.isfinite().all()):
        labels_N = fcluster(ward(torch.pdist(tokens_NH).numpy()), max_clusters, "maxclust")
    _, first_C = np.unique(labels_N, return_index=True)
    members_CN = torch.from_numpy(labels_N == labels_N[np.sort(first_C)][:, None])
    return members_CN.float() @ tokens_NH
