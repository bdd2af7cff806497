"""Vectors as a compressed index would store them, with gradients as if they had not been touched.

The straight-through estimator (Bengio et al. 2013, arXiv 1308.3432): the loss is computed from the stored vectors, and
its gradient with respect to them is taken for the gradient with respect to the vectors before.

Legend: B texts, K most vectors of a text, H hidden size, M vectors of all texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffretriever.codecs.base import Codec
from diffretriever.training.text_vectors import TextVectors


def stored_vectors(vectors_MH: Tensor, codec: Codec) -> Tensor:
    """Return float32 [M, H]: what an index compressed by `codec` holds of float32 vectors, on their device.

    That is: rounded to fp16 by the encoder, coded, decoded, and rounded to fp16 by the index. There is no gradient.

    Raises:
        ValueError: a value is no finite number, or H is not the codec's.
    """
    encoded_MH = vectors_MH.detach().to(torch.float16).cpu().numpy()
    decoded_MH = codec.decode(codec.encode(encoded_MH)).astype(np.float16)
    return torch.from_numpy(decoded_MH).to(vectors_MH.device, torch.float32)


def through_codec(texts: TextVectors, codec: Codec) -> TextVectors:
    """Return the texts with their vectors as stored; gradients reach the vectors before, unchanged.

    Vectors with a value that is no finite number come back as they are, and so does the loss show it.
    """
    vectors_MH = texts.vectors_BKH[texts.valid_BK]
    if not vectors_MH.isfinite().all():
        return texts
    stored_MH: Tensor = _StraightThrough.apply(vectors_MH, codec)
    return texts._replace(
        vectors_BKH=torch.zeros_like(texts.vectors_BKH).index_put((texts.valid_BK,), stored_MH),
    )


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors_MH: Tensor, codec: Codec) -> Tensor:
        return stored_vectors(vectors_MH, codec)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
