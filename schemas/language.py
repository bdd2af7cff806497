"""Languages of texts, as ISO 639-1 codes."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

ENGLISH = "en"
AUTO = "auto"
_CODE = re.compile("[a-z]{2}")


def _checked(code: str) -> str:
    if not _CODE.fullmatch(code):
        raise ValueError(f"unknown language '{code}': give an ISO 639-1 code, such as en, de or zh")
    return code


def _checked_choice(choice: str) -> str:
    return choice if choice == AUTO else _checked(choice)


Language: TypeAlias = Annotated[str, AfterValidator(_checked)]
LanguageChoice: TypeAlias = Annotated[str, AfterValidator(_checked_choice)]
"""A language, or `auto`."""
