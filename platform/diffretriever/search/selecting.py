"""Choosing each query's K_q before it is encoded, by a selector of `budgets.selectors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffretriever.budgets.features import QueryText, features_of
from diffretriever.budgets.selectors import open_selector
from diffretriever.encoders.base import Encoder
from diffretriever.search.base import Searcher
from diffretriever.search.neural import NeuralSearcher
from schemas.retriever import MaskedRetriever
from schemas.selection import encoder_fingerprint


@dataclass(frozen=True, slots=True)
class Choice:
    """A query's K_q, and the features that it was chosen by."""

    budget: int
    features: dict[str, float]


class BudgetChooser:
    """A selector beside the encoder whose queries it chooses for.

    Attributes:
        selector: that chooses.
        encoder: of the searcher; its tokenizer gives the features.
        own_budget: the retriever's own K_q.
    """

    def __init__(self, source: str, searcher: Searcher) -> None:
        """`source` names the selector as `open_selector` takes it.

        Raises:
            ValueError: a retriever without slots, no such selector, or one that was fitted for another encoder.
        """
        manifest = searcher.index.manifest
        if not isinstance(manifest.retriever, MaskedRetriever) or not isinstance(searcher, NeuralSearcher):
            raise ValueError(f"the {manifest.retriever.method} method has no query budget: leave --selector out")
        self.selector = open_selector(source, encoder_fingerprint(manifest))
        self.encoder: Encoder = searcher.encoder
        self.own_budget = manifest.retriever.budget.query

    def choose(self, texts: Sequence[str]) -> list[Choice]:
        """Return the K_q of each query and why.

        Raises:
            ValueError: the selector needs a feature that texts and subwords alone do not give.
        """
        rows = self.encoder.preparer.query_tokens(texts)
        found = [features_of(QueryText(text, row)) for text, row in zip(texts, rows, strict=True)]
        return [Choice(self.selector.choose(features), features) for features in found]
