"""Rewrite a table in parts and one commit, for example to compress it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from diffretriever.core.files import filesystem_of
from diffretriever.index.commits import changed_by_another, commit_to, data_files, fragments_in, receipt_of, table_uri
from diffretriever.index.damage import finite_rows, refuse_rows
from diffretriever.index.manifest import table_schema
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import stored_rows
from diffretriever.schemas.index import IndexManifest
from diffretriever.vectors.representations import read_vectors

# Bounds the work that a killed job loses, and a worker's memory.
_PART_BYTES, _BATCH_BYTES = 256 << 20, 16 << 20
_TAKEN_ROWS = 1024
"""Batch size of random reads."""


class TablePart(NamedTuple):
    """Consecutive live rows of a fragment."""

    fragment: int
    first: int
    rows: int

    @property
    def key(self) -> str:
        """Name of the part within its version."""
        return f"{self.fragment}-{self.first}"


def parts_of(index: PassageIndex) -> list[TablePart]:
    """Split the table into parts of about 256 MB of vectors, in table order."""
    step = max(1, _PART_BYTES // _row_bytes(index.manifest))
    return [
        TablePart(fragment.fragment_id, first, min(step, fragment.count_rows() - first))
        for fragment in index.fragments()
        for first in range(0, fragment.count_rows(), step)
    ]


def write_part(uri: str, version: int, part: TablePart, manifest: IndexManifest) -> str:
    """Write a part of a version for a new manifest, uncommitted; return the receipt, JSON text."""
    index = PassageIndex.open(uri, version)
    schema = table_schema(manifest)
    rows = pa.RecordBatchReader.from_batches(schema, _coded(index, part, manifest, schema))
    fragments = write_fragments(rows, table_uri(index.uri), schema=schema, mode="overwrite")
    return receipt_of(fragments)


def _coded(
    index: PassageIndex, part: TablePart, manifest: IndexManifest, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    fragment: Any = index.dataset.get_fragment(part.fragment)
    columns = [name for name in index.dataset.schema.names if name != "codes"]
    batch_rows = max(1, _BATCH_BYTES // _row_bytes(index.manifest))
    scanner = fragment.scanner(columns=columns, offset=part.first, limit=part.rows, batch_size=batch_rows)
    for batch in finite_rows(index.uri, scanner.to_batches()):
        yield stored_rows(index.uri, manifest, batch, schema)


def _row_bytes(manifest: IndexManifest) -> int:
    retriever = manifest.retriever
    assert "dense" in retriever.modes, "BM25 indexes have no vectors"
    return int(retriever.max_vectors("passage") * (manifest.hidden_size or 0) * 2)


def files_exist(uri: str, receipt: str) -> bool:
    """Return whether the files of a receipt exist: Lance removes uncommitted files after seven days."""
    filesystem, folder = filesystem_of(f"{table_uri(uri)}/data")
    paths = [f"{folder}/{file.path}" for fragment in fragments_in([receipt]) for file in fragment.files]
    return all(info.is_file for info in filesystem.get_file_info(paths))


def replace_all(index: PassageIndex, manifest: IndexManifest, receipts: list[str]) -> None:
    """Commit the parts of all rows, in table order, under the `WriterLock`; `index` moves to the new version.

    Raises:
        ValueError: another process has committed to this index.
    """
    if lance.dataset(table_uri(index.uri)).version != index.version:
        raise changed_by_another(index.uri)
    fragments = fragments_in(receipts)
    operation = lance.LanceOperation.Overwrite(table_schema(manifest), fragments)
    with commit_to(index.uri, data_files(fragments)):
        # Retries would overwrite commits of other processes.
        lance.LanceDataset.commit(table_uri(index.uri), operation, read_version=index.version, max_retries=0)
    index.refresh()


def sample_of(index: PassageIndex, size: int) -> np.ndarray:
    """Return the vectors of random passages, float16 [S, H], at most `size`, in table order."""
    generator = np.random.default_rng(0)
    rows = generator.permutation(len(index))
    tables: list[pa.Table] = []
    count = 0
    for start in range(0, len(rows), _TAKEN_ROWS):
        tables.append(index.take(rows[start : start + _TAKEN_ROWS], ["id", "reps"]))
        refuse_rows(index.uri, tables[-1])
        count += len(read_vectors(tables[-1])[0])
        if count >= size:
            break
    taken = pa.concat_tables(tables)
    vectors_NH, _ = read_vectors(taken.take(np.argsort(rows[: len(taken)])))
    return vectors_NH[np.sort(generator.choice(count, min(size, count), replace=False))]
