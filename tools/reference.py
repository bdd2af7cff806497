"""Write the API reference, HTML made from the docstrings: `make reference`."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import pdoc

import diffretriever
from tools import ROOT

MODULES = (
    "diffretriever",
    "diffretriever.client",
    "diffretriever.schemas",
    "diffretriever.backbones.base",
    "diffretriever.vectors.product",
    "diffretriever.collections.base",
    "diffretriever.encoders.base",
    "diffretriever.vectors.representations",
    "diffretriever.evaluation.measures",
    "diffretriever.rerank.likelihood",
    "diffretriever.vectors",
    "diffretriever.search.searcher",
)
"""What users call, what configs hold, and what a method, backbone or codec of one's own is made of."""


def write(folder: Path, modules: Sequence[str] = MODULES) -> None:
    """Write the pages of modules; `index.html` leads to all."""
    # They load on first use, and pdoc looks for what is loaded.
    for name in diffretriever.__all__:
        setattr(diffretriever, name, getattr(diffretriever, name))
    pdoc.render.configure(docformat="google", footer_text=f"DiffRetriever {diffretriever.__version__}")
    with warnings.catch_warnings():
        # The parameters of a dataclass whose types only type checkers import are printed as they are written.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        pdoc.pdoc(*modules, output_directory=folder)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "reference")
    options = parser.parse_args()
    write(options.output)
    print(options.output / "index.html")
