"""Late interaction over a native backbone: a vector a token, or, of passages, a vector a cluster of tokens.

Vectors are the final hidden states of all tokens, special ones too, scored by MaxSim as slots are. A share of the
text's mean in each of them (`mean_share`) lets MaxSim score whole texts along with tokens, and takes no further vector.

Clustering is done on the CPU, while the device goes on with later batches. No gradient passes through it: training
compares tokens, and clusters are made when passages are stored.

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
    """Texts as they are pooled; `slots` of a passage is the most clusters that it is stored as, else 0."""

    config: TokensRetriever

    def default_slots(self, side: Side) -> int:
        """Return the most clusters; 0 where a text has a vector for each token."""
        return (self.config.clusters or 0) if side == "passage" else 0


class TokensEncoder(BackboneEncoder):
    """Final hidden states of all tokens, L2-normalised; of passages the means of their clusters, where asked for."""

    config: TokensRetriever
    preparer_class = TokensPreparer

    def encode_batch(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return vectors, float16 [M, H], counts of tokens [B], and of texts to be clustered, means [B, H]."""
        with torch.inference_mode():
            hidden_BLH, own_BL = self._read(texts)
            means_BH = None
            if any(text.slots for text in texts):
                means_BH = to_host(mean_state(hidden_BLH, own_BL))
            elif self.config.mean_share:
                hidden_BLH = self._with_share(hidden_BLH, own_BL)
            return to_host(stored_vectors(hidden_BLH, own_BL)), own_BL.sum(1), means_BH

    def represent(
        self, texts: Sequence[PreparedText], computed: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
    ) -> Representations:
        """Cluster passages if they are to be clustered; see the base class."""
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
        """Return the states of all tokens, floating [B, L, H], with the mean's share in them; see the base class."""
        hidden_BLH, own_BL = self._read(texts)
        return TextStates(self._with_share(hidden_BLH, own_BL) if self.config.mean_share else hidden_BLH, own_BL)

    def _with_share(self, hidden_BLH: torch.Tensor, own_BL: torch.Tensor) -> torch.Tensor:
        return with_mean(hidden_BLH, mean_state(hidden_BLH, own_BL)[:, None], self.config.mean_share)

    def _read(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states on the device, floating [B, L, H], and on the CPU the mask of real tokens, bool [B, L]."""
        ids_BL, mask_BL = pad_right([text.input_ids for text in texts], self.backbone.vocabulary.pad_token_id)
        positions_BL = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape)
        no_tokens = torch.zeros(0, dtype=torch.int64)
        hidden_BLH, _ = self.backbone.forward(ids_BL, mask_BL, positions_BL, no_tokens)
        return hidden_BLH, mask_BL.bool()


def with_mean(vectors_MH: torch.Tensor, means_MH: torch.Tensor, share: float) -> torch.Tensor:
    """Return float32 [..., H]: share · mean + (1 - share) · vector, of length 1 before, not normalised again."""
    return share * unit(means_MH) + (1 - share) * unit(vectors_MH)


def clustered(tokens_NH: torch.Tensor, most: int) -> torch.Tensor:
    """Return float32 [C, H]: the sums of a text's clusters, which point where their means do; C ≤ `most`.

    Clusters are Ward's (1963): from single tokens on, those two are merged that add least to the squared distances
    from the clusters' means. They stand in the order of their first tokens. A text of no more than `most` tokens keeps
    them all. Where distances are equal up to rounding, rounding decides, and there may be fewer clusters.
    """
    if len(tokens_NH) <= most:
        return tokens_NH
    labels_N = np.ones(len(tokens_NH), np.int32)
    # What is not finite has no distances: it is left in the sum, to be refused by who stores or searches.
    if bool(tokens_NH.isfinite().all()):
        labels_N = fcluster(ward(torch.pdist(tokens_NH).numpy()), most, "maxclust")
    _, first_C = np.unique(labels_N, return_index=True)
    members_CN = torch.from_numpy(labels_N == labels_N[np.sort(first_C)][:, None])
    return members_CN.float() @ tokens_NH
