"""Splits of sweeps that belong together: of one retriever, over the same budgets.

Legend: F features, Q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from diffretriever.budgets.features import FEATURES, DocumentFrequencies, QueryText, check_names, features_of
from diffretriever.budgets.outcomes import Outcomes, read_manifest
from diffretriever.budgets.queries import has_encoded, read_encoded, read_queries
from diffretriever.encoders.representations import Representations
from schemas.sweep import SweepManifest, SweepMode


@dataclass(frozen=True, slots=True)
class SweptSplit:
    """One split of one sweep.

    Attributes:
        folder: of the sweep.
        split: name of its subfolder.
        manifest: of the sweep.
    """

    folder: Path
    split: str
    manifest: SweepManifest

    @property
    def name(self) -> str:
        """Such as `scifact/test`."""
        return f"{self.manifest.collection}/{self.split}"

    def outcomes(self, mode: SweepMode, measure: str) -> Outcomes:
        """Read one mode and measure; raises `ValueError` where the sweep lacks it."""
        return Outcomes.read(self.folder, self.split, mode, measure)

    def index_folder(self, passage_budget: int) -> Path:
        """Return where the index of one K_p lies, if the sweep still has it."""
        return self.folder / "indexes" / f"p{passage_budget}"

    def has_encoded(self, query_budget: int) -> bool:
        """Return whether the sweep still has the queries as this K_q encoded them."""
        return has_encoded(self.folder, self.split, query_budget)

    def encoded(self, query_budget: int) -> Representations:
        """Read the queries as this K_q encoded them; raises `ValueError` where they are not there."""
        return read_encoded(self.folder, self.split, query_budget)

    def features(
        self, queries: Sequence[str], names: Sequence[str], frequencies: DocumentFrequencies | None = None
    ) -> np.ndarray:
        """Return features of the queries with these ids, float64 [Q, F].

        Raises:
            ValueError: a query that the sweep did not keep, no such feature, or one that needs document frequencies or
                queries of K_q = 1 that are not there.
        """
        check_names(names)
        lacking = next((name for name in names if FEATURES[name].needs_frequencies and frequencies is None), None)
        if lacking is not None:
            raise ValueError(f"the feature '{lacking}' needs document frequencies, from an index that {self.name} has")
        kept = read_queries(self.folder, self.split)
        missing = next((query for query in queries if query not in kept), None)
        if missing is not None:
            raise ValueError(f"the queries kept in {self.folder / self.split} lack '{missing}': run the sweep again")
        passes = any(FEATURES[name].needs_pass for name in names)
        confidences = dict(zip(kept, _confidences(self.encoded(1)), strict=True)) if passes else {}
        asked = [QueryText(kept[q].text, kept[q].token_ids, frequencies, confidences.get(q)) for q in queries]
        rows = [features_of(query) for query in asked]
        return np.array([[row[name] for name in names] for row in rows], dtype=np.float64)


def _confidences(encoded: Representations) -> list[float]:
    """Return each query's largest impact, 0 without any."""
    bounds = pairwise(encoded.impact_offsets.tolist())
    return [float(encoded.impact_weights[first:end].max(initial=0.0)) for first, end in bounds]


def open_splits(paths: Sequence[Path]) -> list[SweptSplit]:
    """Open split folders, such as sweeps/scifact/test.

    Raises:
        ValueError: no such split, one given twice, or sweeps of different retrievers or budgets.
    """
    splits = [_open(path) for path in paths]
    first = splits[0].manifest
    names = [split.name for split in splits]
    for path, split in zip(paths, splits, strict=True):
        manifest = split.manifest
        if manifest.fingerprint != first.fingerprint:
            raise ValueError(
                f"{path} is of encoder {manifest.fingerprint} ({manifest.retriever}), {paths[0]} of "
                f"{first.fingerprint} ({first.retriever}): give sweeps of one retriever"
            )
        if (manifest.query_budgets, manifest.passage_budgets) != (first.query_budgets, first.passage_budgets):
            raise ValueError(f"{path} and {paths[0]} were swept over different budgets: sweep both over the same ones")
        if names.count(split.name) > 1:
            raise ValueError(f"{split.name} is given twice, the second time as {path}: leave one out")
    return splits


def _open(path: Path) -> SweptSplit:
    manifest = read_manifest(path.parent)
    if path.name not in manifest.splits:
        raise ValueError(
            f"{path} is no split of the sweep {path.parent}, which has {', '.join(manifest.splits)}: "
            f"give for example {path.parent / manifest.splits[0]}"
        )
    return SweptSplit(path.parent, path.name, manifest)
