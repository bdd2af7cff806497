"""What can be held against a LaTeX document without LaTeX: environments, braces, symbols, and widths of rows."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"(?<!\\)[#_^~]")
_MATHS = re.compile(r"(?<!\\)\$[^$]*(?<!\\)\$")
_VERBATIM = re.compile(r"\\begin\{verbatim\}.*?\\end\{verbatim\}", re.DOTALL)
_TABULAR = re.compile(r"\\begin\{tabular\}\{([lc]+)\}\n(.*?)\\end\{tabular\}", re.DOTALL)


def faults(document: str) -> list[str]:
    """Return what is wrong with a document, each fault with the line that it is in; empty for a good one."""
    body = _VERBATIM.sub("", document[document.index(r"\begin{document}") :])
    found = [*_nesting(body), *_symbols(body)]
    for columns, inside in _TABULAR.findall(body):
        found += _rows(inside, len(columns))
    return found


def _nesting(body: str) -> list[str]:
    open_ones: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            open_ones.append(name)
        elif not open_ones or open_ones.pop() != name:
            return [f"\\end{{{name}}} closes another environment"]
    return [f"open: {name}" for name in open_ones]


def _symbols(body: str) -> list[str]:
    found = []
    depth = 0
    for line in body.splitlines():
        plain = _MATHS.sub("", line)
        found += [f"'{letter}' is no ASCII: {line}" for letter in line if not letter.isascii()]
        found += [f"'{symbol}' means something else in LaTeX: {line}" for symbol in _SPECIAL.findall(plain)]
        found += [f"an odd '$': {line}"] if re.search(r"(?<!\\)\$", plain) else []
        found += [f"a comment: {line}"] if re.search(r"(?<!\\)%.", line) else []
        found += [f"'&' outside a row: {line}"] if re.search(r"(?<!\\)&", line) and not line.endswith(r"\\") else []
        braces = re.sub(r"\\[{}]", "", line)
        depth += braces.count("{") - braces.count("}")
        found += [f"a brace closes nothing: {line}"] if depth < 0 else []
    return [*found, *([f"{depth} braces are open at the end"] if depth else [])]


def _rows(inside: str, columns: int) -> list[str]:
    found = []
    for line in inside.splitlines():
        if line.endswith(r"\\"):
            cells = re.split(r"(?<!\\)&", line)
            spans = (re.search(r"\\multicolumn\{(\d+)\}", cell) for cell in cells)
            width = sum(1 if span is None else int(span[1]) for span in spans)
            found += [f"{width} columns in place of {columns}: {line}"] if width != columns else []
    return found
