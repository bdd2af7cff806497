"""Query features of a sweep's splits: which the sweep's files allow, and their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffretriever.budgets.features import FEATURES, DocumentFrequencies
from diffretriever.budgets.splits import SweptSplit
from diffretriever.index.table import PassageIndex
from diffretriever.search.frequencies import document_frequencies


def available_features(splits: Sequence[SweptSplit]) -> tuple[str, ...]:
    """Return the features that can be computed for all splits, in the order of the registry."""
    has_indexes = all(_index_place(split) is not None for split in splits)
    has_passes = all(split.has_encoded(1) for split in splits)
    return tuple(
        name
        for name, feature in FEATURES.items()
        if (has_indexes or not feature.needs_frequencies) and (has_passes or not feature.needs_pass)
    )


def query_features(split: SweptSplit, queries: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return features of the queries with these ids, float64 [Q, F]; document frequencies are counted where needed.

    Raises:
        ValueError: as `SweptSplit.features` has it.
    """
    wanted = any(name in FEATURES and FEATURES[name].needs_frequencies for name in names)
    return split.features(queries, names, _frequencies(split) if wanted else None)


def _frequencies(split: SweptSplit) -> DocumentFrequencies | None:
    """Count the words of the sweep's passages; None where it has no index any more."""
    place = _index_place(split)
    return None if place is None else document_frequencies(PassageIndex.open(place))


def _index_place(split: SweptSplit) -> str | None:
    """Return where an index of the sweep lies: all hold the same texts."""
    places = (str(split.index_folder(budget)) for budget in split.manifest.passage_budgets)
    return next(filter(PassageIndex.exists, places), None)
