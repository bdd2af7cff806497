"""Each query's K_q, chosen before it is encoded, by a selector of `budgets.selectors`."""

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
    """A query's K_q, and the features that it was chosen by."""

    budget: int
    features: dict[str, float]


class BudgetChooser:
    """A selector with what it looks at: the words of an index's passages, and the tokenizer of its encoder.

    Attributes:
        selector: that chooses.
        own_budget: the retriever's own K_q.
    """

    def __init__(self, source: str, index: PassageIndex, preparer: Preparer | None) -> None:
        """`source` names the selector as `open_selector` takes it; `preparer` is that of the index's encoder.

        A selector that looks at how rare words are has the words of all passages counted now, in one pass.

        Raises:
            ValueError: a retriever without slots, no such selector, or one that was fitted for another encoder or looks
                at what is not known before a query is encoded.
        """
        manifest = index.manifest
        if preparer is None or not has_slots(manifest.retriever):
            raise ValueError(f"the {manifest.retriever.method} method has no query budget: leave --selector out")
        self.selector = open_selector(source, encoder_fingerprint(manifest))
        self.own_budget = manifest.retriever.budget.query
        self._preparer = preparer
        features = [FEATURES[name] for name in self.selector.features]
        if any(feature.needs_slots for feature in features):
            raise ValueError(
                f"{source} looks at what only a pass of the encoder says of a query, among {self.selector.features}: "
                "fit a selector on features of the text"
            )
        needs_frequencies = any(feature.needs_frequencies for feature in features)
        self._frequencies = document_frequencies(index) if needs_frequencies else None

    def choose(self, texts: Sequence[str]) -> list[Choice]:
        """Return the K_q of each query and why."""
        choices = []
        for text, row in zip(texts, self._preparer.query_tokens(texts), strict=True):
            query = QueryText(text, row, self._frequencies)
            features = {name: FEATURES[name].compute(query) for name in self.selector.features}
            choices.append(Choice(self.selector.choose(features), features))
        return choices


def document_frequencies(index: PassageIndex) -> DocumentFrequencies:
    """Count the words of all passages, in one pass over their titles and texts."""
    return count_documents(
        f"{title} {text}"
        for batch in index.batches(["title", "text"], _BATCH_ROWS)
        for title, text in zip(batch.column("title").to_pylist(), batch.column("text").to_pylist(), strict=True)
    )
