"""The name of a codec: a family and the bits that it spends on a dimension of a slot vector."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast, get_args

from pydantic import Field

from diffretriever.schemas.base import Model, TextForm

Family: TypeAlias = Literal["residual", "product"]
Bits: TypeAlias = Literal[1, 2, 4]


@dataclass(frozen=True, slots=True)
class CodecConfig(TextForm):
    """A codec with the text form `residual2`, used alike in configs, file names and tables.

    `residual` is ColBERTv2's, as the paper uses it: a centroid and a residual of so many bits a dimension (appendix on
    storage). `product` rotates vectors and gives each byte a codebook of its own; see `diffretriever.codecs.product`.

    >>> CodecConfig.parse("residual2") == CodecConfig("residual", 2)
    True
    >>> str(CodecConfig("product", 1))
    'product1'
    """

    text_form = re.compile(f"({'|'.join(get_args(Family))})({'|'.join(map(str, get_args(Bits)))})")
    family: Family
    bits: Bits

    def __post_init__(self) -> None:
        if self.family not in get_args(Family) or self.bits not in get_args(Bits):
            raise ValueError(f"'{self}' is not a codec: write {_choices()}")

    @classmethod
    def parse(cls, text: str) -> CodecConfig:
        """Read the text form; raises `ValueError` for anything else."""
        match = cls.text_form.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a codec: write {_choices()}")
        return cls(cast("Family", match[1]), cast("Bits", int(match[2])))

    def __str__(self) -> str:
        return f"{self.family}{self.bits}"


class StoredCodec(Model):
    """The codec of an index: its vectors are what `codecs/DIGEST.safetensors` beside the table decodes."""

    name: CodecConfig
    """Family and bits."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """Of the trained codec; see `diffretriever.codecs.base.Codec.digest`."""
    width: int
    """Bytes of a vector."""
    keeps_vectors: bool
    """Whether the vectors that were encoded are still there; if not, the decoded ones have taken their place."""


def _choices() -> str:
    return " or ".join(f"{family}<bits>" for family in get_args(Family)) + ", with 1, 2 or 4 bits a dimension"
