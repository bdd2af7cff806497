"""Gradient caching (Gao et al. 2021, arXiv 2101.06983): one loss over many parts in the memory of one part.

All parts are encoded without gradient; the loss over them gives the gradient with respect to each representation; each
part is then encoded again, with gradient, and that is passed on. The result is the gradient of the loss over all parts
at once, as long as a part gives the same both times: parts seed their own dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diffretriever.training.text_vectors import TextVectors, join

Encode = Callable[[], tuple[TextVectors, TextVectors]]
"""Represents the queries and the passages of a part; the same each time it is called."""


def cached_backward(
    parts: Sequence[Encode],
    loss_of: Callable[[TextVectors, TextVectors], Tensor],
    backward: Callable[[Tensor, bool], None],
) -> None:
    """Compute gradients of `loss_of` the queries and passages of all `parts`.

    Args:
        parts: at least one.
        loss_of: returns a scalar from the representations of all queries and all passages, in the parts' order.
        backward: called with a scalar for each part, whose gradients are to be added up, and whether it is the last.
    """
    with torch.no_grad():
        encoded = [encode() for encode in parts]
    leaves = [(queries.leaf(), passages.leaf()) for queries, passages in encoded]
    loss_of(join([queries for queries, _ in leaves]), join([passages for _, passages in leaves])).backward()
    for number, (encode, (queries, passages)) in enumerate(zip(parts, leaves, strict=True), start=1):
        queries_again, passages_again = encode()
        passed_on = _passed_on(queries_again, queries) + _passed_on(passages_again, passages)
        backward(passed_on, number == len(parts))


def _passed_on(again: TextVectors, leaf: TextVectors) -> Tensor:
    """Return a scalar whose gradient is that of the loss, by way of these representations."""
    pairs = [(again.vectors_BKH, leaf.vectors_BKH.grad), (again.weights_BT, leaf.weights_BT.grad)]
    return torch.stack([(tensor * gradient).sum() for tensor, gradient in pairs if gradient is not None]).sum()
