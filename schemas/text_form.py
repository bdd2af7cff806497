"""Values with a text form: configs and files hold the text, code holds the value."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class TextForm:
    """A base of frozen dataclasses whose `str` is what `parse` reads; pydantic fields take and give that text."""

    __slots__ = ()
    text_form: ClassVar[re.Pattern[str]]
    """What texts look like."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; raises `ValueError` for anything else."""
        raise NotImplementedError

    @classmethod
    def _validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls.parse(str(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the text form in configs and write it back (the hook pydantic asks for)."""
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.to_string_ser_schema(),
            json_schema_input_schema=core_schema.str_schema(pattern=cls.text_form.pattern),
        )
