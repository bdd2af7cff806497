"""What pages with tables and figures are written in. Another format is a file here and a line in `FORMATS`."""

from __future__ import annotations

from diffretriever.evaluation.formats.base import Command, Format, Picture, Section
from diffretriever.evaluation.formats.html import HtmlFormat
from diffretriever.evaluation.formats.latex import LatexFormat
from diffretriever.evaluation.formats.markdown import MarkdownFormat

FORMATS: tuple[Format, ...] = (MarkdownFormat(), LatexFormat(), HtmlFormat())

__all__ = ["FORMATS", "Command", "Format", "Picture", "Section"]
