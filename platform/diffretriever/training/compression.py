"""Compression-aware training: the dense loss sees the passages as a compressed index would store them.

Gradients are as if the vectors had not been touched: the straight-through estimator (Bengio et al. 2013, arXiv
1308.3432) computes the loss from the stored vectors, and takes its gradient with respect to them for the gradient with
respect to the vectors before.

The codec is fitted to the weights as they are at the step, by the same function as that of a compressed index, on
vectors that the encoder gives for passages of the training set: encoded as for an index, without dropout. It is fitted
again every so many steps, since vectors move. The first worker fits it and all others get it, so that it does not
depend on their number; it is part of the checkpoints, since its weights are gone when training is resumed.

Legend: B texts, K most vectors of a text, H hidden size, M vectors of all texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffretriever.codecs.product import Codec, codec_from_bytes, load_codec
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.schemas.training import Recipe
from diffretriever.training.batches import Batches
from diffretriever.training.gather import Workers, broadcast_bytes
from diffretriever.training.trainable import TextVectors, with_training_lengths

CODEC_FILE = "codec.safetensors"

SAMPLE = 2048
"""Passages that a codec is fitted on: a batch of the paper."""


class Compression:
    """The codec of the dense loss and its upkeep; it does nothing where the recipe names none."""

    def __init__(self, encoder: BackboneEncoder, batches: Batches, recipe: Recipe, workers: Workers) -> None:
        self._encoder, self._batches, self._recipe, self._workers = encoder, batches, recipe, workers
        self.codec: Codec | None = None
        """As it was last fitted."""

    def refit(self, step: int) -> None:
        """Fit the codec anew where `step` is one to do so; all workers call it, the module in evaluation mode.

        Raises:
            ValueError: the hidden size is no multiple of 8, or a vector is not finite.
        """
        if self._recipe.compression is None or step % self._recipe.compression_refit:
            return
        fitted = self._fitted(step).to_bytes() if self._workers.rank == 0 else None
        self.codec = codec_from_bytes(broadcast_bytes(fitted, self._workers, self._encoder.backbone.device))

    def applied(self, passages: TextVectors) -> TextVectors:
        """Return passages as stored; see `through_codec`."""
        if self._recipe.compression is None:
            return passages
        assert self.codec is not None, "a step begins with `refit`, a resumed training with `load`"
        return through_codec(passages, self.codec)

    def save(self, folder: Path) -> None:
        """Write the codec, if there is one, on the first worker."""
        if self.codec is not None and self._workers.rank == 0:
            self.codec.save(folder / CODEC_FILE)

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote."""
        if (folder / CODEC_FILE).is_file():
            self.codec = load_codec(folder / CODEC_FILE)

    def _fitted(self, step: int) -> Codec:
        assert self._recipe.compression is not None, "the recipe names the codec"
        passages = self._batches.passages(step, SAMPLE)
        config = with_training_lengths(self._encoder.config, self._recipe)
        preparer = self._encoder.make_preparer(config, self._encoder.preparer.vocabulary)
        # A new one: what an encoder has kept of earlier weights must not be used.
        encoder = type(self._encoder)(config, self._encoder.backbone, preparer)
        encoded = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
        return Codec.train(self._recipe.compression.bits, encoded.vectors_MH)


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


def stored_vectors(vectors_MH: Tensor, codec: Codec) -> Tensor:
    """Return float32 [M, H]: what an index compressed by `codec` holds of float32 vectors, on their device.

    That is: rounded to fp16 by the encoder, coded, decoded, and rounded to fp16 by the index. There is no gradient.

    Raises:
        ValueError: a value is no finite number, or H is not the codec's.
    """
    encoded_MH = vectors_MH.detach().to(torch.float16).cpu().numpy()
    decoded_MH = codec.decode(codec.encode(encoded_MH)).astype(np.float16)
    return torch.from_numpy(decoded_MH).to(vectors_MH.device, torch.float32)
