"""Writing an index's passages anew with codes: parts by workers, one commit by the driver.

A part is a run of a fragment's rows, written as fragments that no version owns. The commit puts all of them, and the
manifest that names the codec, in the place of the version before, which stays readable until compaction forgets it.
New fragments rather than an added column: the bytes of dropped vectors are gone from the files, and nothing kept for
a fragment by its file's name (8-bit codes) can outlive the vectors that it was made of.

Legend: H hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from diffretriever.codecs.sampling import sample_vectors
from diffretriever.encoders.representations import read_vectors
from diffretriever.index.finite import finite_rows
from diffretriever.index.table import PassageIndex, changed_by_another, refused_if_changed, table_schema, table_uri
from diffretriever.index.vectors import with_codes
from diffretriever.index.work_folder import WorkFolder
from schemas.manifest import IndexManifest

_PART_BYTES = 256 << 20
_BATCH_BYTES = 16 << 20
_TAKEN_ROWS = 1024


class Part(NamedTuple):
    """A run of live rows of a fragment."""

    fragment: int
    first: int
    rows: int

    @property
    def key(self) -> str:
        """A name for it within its version."""
        return f"{self.fragment}-{self.first}"


def sample_of(index: PassageIndex, size: int) -> tuple[np.ndarray, int]:
    """Return up to `size` vectors, float16 [., H], and about how many the index has.

    Vectors come from as many passages, drawn at random: no more of the table is read than that.

    Raises:
        ValueError: one of them holds NaN or infinity.
    """
    n_passages = len(index)
    rows = np.sort(np.random.default_rng(0).choice(n_passages, min(n_passages, size), replace=False))
    starts = range(0, len(rows), _TAKEN_ROWS)
    taken = (index.take(rows[start : start + _TAKEN_ROWS], ["id", "reps"]) for start in starts)
    sample_SH, count = sample_vectors((read_vectors(table)[0] for table in finite_rows(index.uri, taken)), size)
    return sample_SH, round(count * n_passages / len(rows))


def parts_of(index: PassageIndex) -> list[Part]:
    """Cut the table into parts of about 256 MB of vectors, in table order."""
    step = max(1, _PART_BYTES // _row_bytes(index.manifest))
    return [
        Part(fragment.fragment_id, first, min(step, fragment.count_rows() - first))
        for fragment in index.fragments()
        for first in range(0, fragment.count_rows(), step)
    ]


def write_part(uri: str, version: int, part: Part, manifest: IndexManifest) -> str:
    """Write a part of a version with the codes that `manifest` wants; return the receipt, about 400 bytes of JSON.

    Raises:
        ValueError: a passage's vectors or impact weights hold NaN or infinity.
    """
    index = PassageIndex.open(uri, version)
    schema = table_schema(manifest)
    rows = pa.RecordBatchReader.from_batches(schema, _coded(index, part, manifest, schema))
    fragments = write_fragments(rows, table_uri(uri), schema=schema, mode="overwrite")
    return json.dumps([fragment.to_json() for fragment in fragments])


def still_there(uri: str, receipt: str) -> bool:
    """Return whether the files of a receipt exist: Lance's clean-up removes what no version owns after seven days."""
    data = WorkFolder(f"{table_uri(uri)}/data")
    return all(data.has(file["path"]) for item in json.loads(receipt) for file in item["files"])


def replace_all(index: PassageIndex, manifest: IndexManifest, receipts: list[str]) -> None:
    """Commit the parts of all rows, in table order; `index` moves to the new version. Hold the `WriterLock`.

    Raises:
        ValueError: another process committed to this index in between.
    """
    if lance.dataset(table_uri(index.uri)).version != index.version:
        raise changed_by_another(index.uri)
    items = [item for receipt in receipts for item in json.loads(receipt)]
    fragments = [FragmentMetadata.from_json(json.dumps(item)) for item in items]
    operation = lance.LanceOperation.Overwrite(table_schema(manifest), fragments)
    with refused_if_changed(index.uri):
        # Without retries Lance overwrites this very version or nothing; with them, what came in between is lost.
        lance.LanceDataset.commit(table_uri(index.uri), operation, read_version=index.version, max_retries=0)
    index.refresh()


def _coded(index: PassageIndex, part: Part, manifest: IndexManifest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    fragment: Any = index.dataset.get_fragment(part.fragment)
    columns = [name for name in index.dataset.schema.names if name != "codes"]
    batch_rows = max(1, _BATCH_BYTES // _row_bytes(index.manifest))
    scanner = fragment.scanner(columns=columns, offset=part.first, limit=part.rows, batch_size=batch_rows)
    for batch in finite_rows(index.uri, scanner.to_batches()):
        yield with_codes(index.uri, manifest, batch).select(schema.names).cast(schema)


def _row_bytes(manifest: IndexManifest) -> int:
    retriever = manifest.retriever
    assert retriever.method != "bm25", "BM25 indexes hold no vectors"
    return int(retriever.max_vectors("passage") * (manifest.hidden_size or 0) * 2)
