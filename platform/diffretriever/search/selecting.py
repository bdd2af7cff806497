"""Chooses K_q of each query before it is encoded, with a selector of `budgets.selectors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffretriever.budgets.features import FEATURES, DocumentFrequencies, QueryText, count_documents
from diffretriever.budgets.selectors import open_selector
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.sweep import encoder_fingerprint

_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """K_q of a query and the features that decided it."""

    budget: int
    features: dict[str, float]


class BudgetChooser:
    """Applies a selector to query texts, with an index's document frequencies and its encoder's tokenizer.

    Attributes:
        selector: the selector.
        default_budget: the retriever's K_q.
    """

    def __init__(self, source: str, index: PassageIndex, preparer: Preparer | None) -> None:
        """Open the selector `source` (see `open_selector`) for an index and its encoder's `preparer`.

        If a feature needs document frequencies, they are counted in one pass over all passages.

        Raises:
            ValueError: the retriever has no slots, the selector is unknown or was fitted for another encoder, or it
                uses features of encoded queries.
        """
        manifest = index.manifest
        if preparer is None or not has_slots(manifest.retriever):
            raise ValueError(f"the {manifest.retriever.method} method has no query budget: leave --selector out")
        self.selector = open_selector(source, encoder_fingerprint(manifest))
        self.default_budget = manifest.retriever.budget.query
        self._preparer = preparer
        features = [FEATURES[name] for name in self.selector.features]
        if any(feature.needs_slots for feature in features):
            raise ValueError(
                f"{source} uses features that are known only after encoding, among {self.selector.features}: "
                "fit a selector on features of the text"
            )
        needs_frequencies = any(feature.needs_frequencies for feature in features)
        self._frequencies = document_frequencies(index) if needs_frequencies else None

    def choose(self, texts: Sequence[str]) -> list[Choice]:
        """Return the K_q of each query, with the features that decided it."""
        choices = []
        for text, row in zip(texts, self._preparer.query_tokens(texts), strict=True):
            query = QueryText(text, row, self._frequencies)
            features = {name: FEATURES[name].compute(query) for name in self.selector.features}
            choices.append(Choice(self.selector.choose(features), features))
        return choices


def document_frequencies(index: PassageIndex) -> DocumentFrequencies:
    """Count document frequencies in one pass over all titles and texts."""
    return count_documents(
        f"{title} {text}"
        for batch in index.batches(["title", "text"], _BATCH_ROWS)
        for title, text in zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True)
    )
