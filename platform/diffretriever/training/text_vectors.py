"""What training makes of texts: the encoders' representations as tensors that gradients flow through.

Legend: B texts, K most vectors of a text, H hidden size, T most content ids of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class TextVectors(NamedTuple):
    """The representations of B texts, on one device; what a text does not have is zero."""

    vectors_BKH: Tensor
    """float32, L2-normalised."""
    valid_BK: Tensor
    """bool, the vectors that a text has: its first ones, at least one."""
    ids_BT: Tensor
    """int64, content ids, distinct within a text; T is 0 for methods without sparse scores."""
    weights_BT: Tensor
    """float32, the impacts log(1 + ReLU) of the ids, max-pooled over the vectors' positions."""
    known_BT: Tensor
    """bool, the ids that a text has."""

    def padded(self, slots: int, ids: int) -> TextVectors:
        """Return the same with room for at least so many vectors and content ids a text."""
        more_slots = max(0, slots - self.valid_BK.shape[1])
        more_ids = (0, max(0, ids - self.ids_BT.shape[1]))
        return TextVectors(
            pad(self.vectors_BKH, (0, 0, 0, more_slots)),
            pad(self.valid_BK, (0, more_slots)),
            pad(self.ids_BT, more_ids),
            pad(self.weights_BT, more_ids),
            pad(self.known_BT, more_ids),
        )

    def leaf(self) -> TextVectors:
        """Return the same values cut off from what computed them, ready to collect gradients."""
        return self._replace(
            vectors_BKH=self.vectors_BKH.detach().requires_grad_(),
            weights_BT=self.weights_BT.detach().requires_grad_(),
        )


class Taught(NamedTuple):
    """What a teacher makes of the texts of a loss; no gradients."""

    queries: TextVectors
    passages: TextVectors


def join(parts: Sequence[TextVectors]) -> TextVectors:
    """Return the texts of all `parts`, in order."""
    slots = max(part.valid_BK.shape[1] for part in parts)
    ids = max(part.ids_BT.shape[1] for part in parts)
    return TextVectors(*map(torch.cat, zip(*(part.padded(slots, ids) for part in parts), strict=True)))
