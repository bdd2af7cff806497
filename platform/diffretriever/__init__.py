"""DiffRetriever: diffusion language models as retrievers, from corpus to served search.

Public names load on first use, so importing the package alone imports neither torch nor Ray nor Lance.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffretriever.backbones.loader import load_backbone
    from diffretriever.collections import open_collection
    from diffretriever.core.consent import trust_code
    from diffretriever.encoders import load_encoder
    from diffretriever.front.evaluation import compare, evaluate
    from diffretriever.front.index import Index
    from diffretriever.front.results import Hit, Results
    from diffretriever.front.retriever import Retriever
    from diffretriever.index.table import PassageIndex
    from diffretriever.presets import list_presets, load_retriever
    from diffretriever.schemas.budget import Budget
    from diffretriever.search import open_searcher

__version__ = "0.1.0"

# OpenMP's threads sleep while they wait for each other. By default they spin: beside a busy process a search with two
# threads then takes 5 to 27 times its CPU time. OpenMP reads this once, when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_PLACES = {
    "Budget": "diffretriever.schemas.budget",
    "Hit": "diffretriever.front.results",
    "Index": "diffretriever.front.index",
    "PassageIndex": "diffretriever.index.table",
    "Results": "diffretriever.front.results",
    "Retriever": "diffretriever.front.retriever",
    "compare": "diffretriever.front.evaluation",
    "evaluate": "diffretriever.front.evaluation",
    "list_presets": "diffretriever.presets",
    "load_backbone": "diffretriever.backbones.loader",
    "load_encoder": "diffretriever.encoders",
    "load_retriever": "diffretriever.presets",
    "open_collection": "diffretriever.collections",
    "open_searcher": "diffretriever.search",
    "trust_code": "diffretriever.core.consent",
}
__all__ = [
    "Budget",
    "Hit",
    "Index",
    "PassageIndex",
    "Results",
    "Retriever",
    "compare",
    "evaluate",
    "list_presets",
    "load_backbone",
    "load_encoder",
    "load_retriever",
    "open_collection",
    "open_searcher",
    "trust_code",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'diffretriever' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
