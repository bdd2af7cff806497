"""Codecs: slot vectors packed into a few bits a dimension.

Adding one is a file here, a family in `schemas.codec` and a line below.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from diffretriever.files import is_local
from diffretriever.schemas.codec import CodecConfig, Family
from diffretriever.schemas.places import plain_place

if TYPE_CHECKING:
    import numpy as np

    from diffretriever.codecs.base import Codec

__all__ = ["CODECS", "bytes_per_vector", "codec_from_bytes", "load_codec", "storage_bytes", "train_codec"]

CODECS: dict[Family, str] = {
    "residual": "diffretriever.codecs.residual:ResidualCodec",
    "product": "diffretriever.codecs.product:ProductCodec",
}
"""Family → its class, as "module:class"."""


def train_codec(config: CodecConfig, sample_MH: np.ndarray, n_vectors: int | None = None, seed: int = 0) -> Codec:
    """Learn a codec from a sample of the vectors that it will code; the same sample and seed give the same codec.

    Args:
        config: which codec.
        sample_MH: float16 or float32 [M, H], L2-normalised; see `diffretriever.index.rewrite`.
        n_vectors: how many vectors will be coded; None is as many as are sampled.
        seed: of random beginnings.

    Raises:
        ValueError: no vectors, a hidden size that is no multiple of 8, or a value that is no finite number.
    """
    from diffretriever.codecs.base import checked

    if len(sample_MH) == 0:
        raise ValueError("a codec is trained on vectors, and there are none: encode passages first")
    _check_hidden_size(sample_MH.shape[1])
    sample_MH = checked(sample_MH, sample_MH.shape[1])
    count = len(sample_MH) if n_vectors is None else n_vectors
    return _codec_class(config).train(config.bits, sample_MH, count, seed)


def storage_bytes(config: CodecConfig, hidden_size: int, n_vectors: int) -> int:
    """Return the bytes that so many packed vectors take, the codec's own file left out.

    Raises:
        ValueError: a hidden size that is no multiple of 8.
    """
    _check_hidden_size(hidden_size)
    return n_vectors * bytes_per_vector(config, hidden_size)


def bytes_per_vector(config: CodecConfig, hidden_size: int) -> int:
    """Return the bytes of a packed vector; of hidden sizes that are no multiple of 8, what whole bytes would take."""
    return _codec_class(config).width(config.bits, hidden_size)


def load_codec(place: str | Path) -> Codec:
    """Read what `Codec.save` wrote to a local path or an object-store URI.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: the file is no codec of this project.
    """
    try:
        return codec_from_bytes(_read_bytes(str(place)))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def codec_from_bytes(data: bytes) -> Codec:
    """Return the codec that `Codec.to_bytes` wrote.

    Raises:
        ValueError: it did not write this, or numbers in it are not finite.
    """
    import numpy as np
    import safetensors.numpy

    length = int.from_bytes(data[:8], "little")
    try:
        config = CodecConfig.parse(json.loads(data[8 : 8 + length])["__metadata__"]["codec"])
        arrays = safetensors.numpy.load(data)
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        raise ValueError("this is no codec: give the file that `Codec.save` wrote") from None
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"'{name}' holds NaN or infinity, so what is decoded would too: restore the file")
    return _codec_class(config)(config.bits, {name: np.array(array) for name, array in arrays.items()})


def _read_bytes(place: str) -> bytes:
    place = plain_place(place)
    if is_local(place):
        return Path(place).read_bytes()
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(place)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _check_hidden_size(hidden_size: int) -> None:
    if hidden_size < 1 or hidden_size % 8:
        raise ValueError(f"codecs fill whole bytes: the hidden size must be a multiple of 8, and it is {hidden_size}")


def _codec_class(config: CodecConfig) -> type[Codec]:
    module, name = CODECS[config.family].split(":")
    found: type[Codec] = getattr(import_module(module), name)
    return found
