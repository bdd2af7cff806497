"""The name of a codec: a family and the bits that it spends on a dimension of a slot vector."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from schemas.base import Model

Family: TypeAlias = Literal["residual", "product"]
Bits: TypeAlias = Literal[1, 2, 4]

_TEXT_FORM = re.compile(f"({'|'.join(get_args(Family))})({'|'.join(map(str, get_args(Bits)))})")


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """A codec with the text form `residual2`, used alike in configs, file names and tables.

    `residual` is ColBERTv2's, as the paper uses it: a centroid and a residual of so many bits a dimension (appendix on
    storage). `product` rotates vectors and gives each byte a codebook of its own; see `diffretriever.codecs.product`.

    >>> CodecConfig.parse("residual2") == CodecConfig("residual", 2)
    True
    >>> str(CodecConfig("product", 1))
    'product1'
    """

    family: Family
    bits: Bits

    def __post_init__(self) -> None:
        if self.family not in get_args(Family) or self.bits not in get_args(Bits):
            raise ValueError(f"'{self}' is not a codec: write {_choices()}")

    @classmethod
    def parse(cls, text: str) -> CodecConfig:
        """Read the text form; raises `ValueError` for anything else."""
        match = _TEXT_FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a codec: write {_choices()}")
        return cls(cast("Family", match[1]), cast("Bits", int(match[2])))

    def __str__(self) -> str:
        return f"{self.family}{self.bits}"

    @classmethod
    def _validate(cls, value: Any) -> CodecConfig:
        return value if isinstance(value, cls) else cls.parse(str(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the text form in configs and write it back (the hook pydantic asks for)."""
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.to_string_ser_schema(),
            json_schema_input_schema=core_schema.str_schema(pattern=_TEXT_FORM.pattern),
        )


class StoredCodec(Model):
    """The codec of an index: its vectors are what `codecs/DIGEST.safetensors` beside the table decodes."""

    name: CodecConfig
    """Family and bits."""
    digest: str
    """Of the trained codec; see `diffretriever.codecs.base.Codec.digest`."""
    width: int
    """Bytes of a vector."""
    keeps_vectors: bool
    """Whether the vectors that were encoded are still there; if not, the decoded ones have taken their place."""


def _choices() -> str:
    return " or ".join(f"{family}<bits>" for family in get_args(Family)) + ", with 1, 2 or 4 bits a dimension"
