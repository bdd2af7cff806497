"""The version of the index that requests are answered from now, and what is said of it."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC
from functools import cached_property

import pyarrow as pa

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex, ids_filter
from diffretriever.index.vectors import columns_to_read, with_vectors
from schemas.passages import representation_fields
from schemas.serve import IndexState

_COUNT_ROWS = 65536


class View:
    """One version of an index, as requests read it beside searching."""

    def __init__(self, index: PassageIndex) -> None:
        self.index = index
        self.version = index.version
        self._rows = len(index)
        self._committed = _committed(index)
        self.checked = time.monotonic()
        """When the latest version of the index was known to be this one."""

    @cached_property
    def collections(self) -> dict[str, int]:
        """Passages by collection; counting them reads a column of the table."""
        counts: Counter[str] = Counter()
        for batch in self.index.batches(["collection"], _COUNT_ROWS):
            counts.update(batch.column("collection").to_pylist())
        return dict(sorted(counts.items()))

    def state(self) -> IndexState:
        """Say which version this is; the name is the last part of the index's place, which itself is nobody's."""
        return IndexState(
            name=self.index.uri.rstrip("/").rpartition("/")[2],
            version=self.version,
            rows=self._rows,
            fingerprint=self.index.manifest.fingerprint,
            committed=self._committed,
            checked_seconds_ago=round(time.monotonic() - self.checked, 3),
        )

    def representations(self, ids: list[str]) -> dict[str, Representations]:
        """Return what is stored of passages, by id, each with N = 1."""
        if not ids:
            return {}
        manifest = self.index.manifest
        assert manifest.hidden_size is not None, "an index with an encoder has vectors"
        wanted = ["id", *(field.name for field in representation_fields(manifest.hidden_size))]
        rows = self.index.dataset.to_table(columns=columns_to_read(manifest, wanted), filter=ids_filter(ids))
        table: pa.Table = with_vectors(self.index.uri, manifest, rows, wanted)
        found = table.column("id").to_pylist()
        return {each: Representations.from_arrow(table.slice(row, 1)) for row, each in enumerate(found)}


def _committed(index: PassageIndex) -> str:
    # Lance gives local time without a zone.
    times = {each["version"]: each["timestamp"] for each in index.dataset.versions()}
    return times[index.version].astimezone(UTC).isoformat(timespec="seconds")
