"""What the reproduction's pages are written in. Another format is a file here and a line in `FORMATS`."""

from __future__ import annotations

from diffretriever.reproduction.formats.base import Command, Format, Picture, Section
from diffretriever.reproduction.formats.html import HtmlFormat
from diffretriever.reproduction.formats.latex import LatexFormat
from diffretriever.reproduction.formats.markdown import MarkdownFormat

FORMATS: tuple[Format, ...] = (MarkdownFormat(), LatexFormat(), HtmlFormat())

__all__ = ["FORMATS", "Command", "Format", "Picture", "Section"]
