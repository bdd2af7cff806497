"""Names of codecs: `product1`, `product2` and `product4` store 1, 2 or 4 bits a dimension."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from diffretriever.schemas.base import Model, TextForm

Bits: TypeAlias = Literal[1, 2, 4]


@dataclass(frozen=True, slots=True)
class CodecConfig(TextForm):
    """A codec, written `product2` in configs, file names and tables; see `diffretriever.vectors.product`.

    Example:
        >>> str(CodecConfig(2)), CodecConfig(2).bytes_per_vector(384)
        ('product2', 96)
    """

    text_form = re.compile(f"product({'|'.join(map(str, get_args(Bits)))})")
    fix = "codec: write product1, product2 or product4, by the bits of a dimension"
    bits: Bits

    def __str__(self) -> str:
        return f"product{self.bits}"

    def bytes_per_vector(self, hidden_size: int) -> int:
        """Return the bytes of a quantised vector: H x bits / 8, rounded up."""
        return -(-hidden_size * self.bits // 8)


class StoredCodec(Model):
    """The codec of an index, stored in `codecs/DIGEST.safetensors` next to the table."""

    name: CodecConfig
    """Name of the codec, which sets the bits a dimension."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """Digest of the trained codec; see `diffretriever.vectors.product.Codec.digest`."""
    width: int
    """Bytes of a quantised vector."""
