"""Rewrite a table, in parts and one commit, for example compressed.

Legend: m vectors of a block, S vectors of the sample, H hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from diffretriever.core.files import filesystem_of
from diffretriever.index.commits import changed_by_another, commit_to, data_files
from diffretriever.index.damage import finite_rows
from diffretriever.index.manifest import table_schema
from diffretriever.index.table import PassageIndex, table_uri
from diffretriever.index.writer import stored_rows
from diffretriever.schemas.index import IndexManifest
from diffretriever.vectors.representations import read_vectors

SAMPLE_SIZE = 1 << 17
"""Default number of vectors that a codec is trained on."""

# Work that a killed job loses, and memory of a worker.
_PART_BYTES, _BATCH_BYTES = 256 << 20, 16 << 20
_TAKEN_ROWS = 1024
"""Batch size of rows drawn at random."""


class TablePart(NamedTuple):
    """Consecutive rows of a fragment, deleted ones not counted."""

    fragment: int
    first: int
    rows: int

    @property
    def key(self) -> str:
        """A name for it within its version."""
        return f"{self.fragment}-{self.first}"


def parts_of(index: PassageIndex) -> list[TablePart]:
    """Cut the table into parts of about 256 MB of vectors, in table order."""
    step = max(1, _PART_BYTES // _row_bytes(index.manifest))
    return [
        TablePart(fragment.fragment_id, first, min(step, fragment.count_rows() - first))
        for fragment in index.fragments()
        for first in range(0, fragment.count_rows(), step)
    ]


def write_part(uri: str, version: int, part: TablePart, manifest: IndexManifest) -> str:
    """Write a part of a version as a new manifest stores it, uncommitted; return the receipt, about 400 bytes of JSON.

    Args:
        uri: of the index.
        version: of its table.
        part: rows of that version.
        manifest: the new one.
    """
    index = PassageIndex.open(uri, version)
    schema = table_schema(manifest)
    rows = pa.RecordBatchReader.from_batches(schema, _coded(index, part, manifest, schema))
    fragments = write_fragments(rows, table_uri(uri), schema=schema, mode="overwrite")
    return json.dumps([fragment.to_json() for fragment in fragments])


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
    assert "dense" in retriever.modes, "BM25 indexes hold no vectors"
    return int(retriever.max_vectors("passage") * (manifest.hidden_size or 0) * 2)


def still_there(uri: str, receipt: str) -> bool:
    """Return whether the files of a receipt exist: Lance removes uncommitted files after seven days."""
    filesystem, folder = filesystem_of(f"{table_uri(uri)}/data")
    paths = [f"{folder}/{file['path']}" for item in json.loads(receipt) for file in item["files"]]
    return all(info.is_file for info in filesystem.get_file_info(paths))


def replace_all(index: PassageIndex, manifest: IndexManifest, receipts: list[str]) -> None:
    """Commit the parts of all rows, in table order, under the `WriterLock`; `index` moves to the new version.

    Raises:
        ValueError: another process has committed to this index.
    """
    if lance.dataset(table_uri(index.uri)).version != index.version:
        raise changed_by_another(index.uri)
    items = [item for receipt in receipts for item in json.loads(receipt)]
    fragments = [FragmentMetadata.from_json(json.dumps(item)) for item in items]
    operation = lance.LanceOperation.Overwrite(table_schema(manifest), fragments)
    with commit_to(index.uri, table_uri(index.uri), data_files(fragments)):
        # With retries, Lance would overwrite commits of other processes.
        lance.LanceDataset.commit(table_uri(index.uri), operation, read_version=index.version, max_retries=0)
    index.refresh()


def sample_of(index: PassageIndex, size: int) -> np.ndarray:
    """Return up to `size` vectors, float16 [., H], of random passages."""
    n_passages = len(index)
    rows = np.sort(np.random.default_rng(0).choice(n_passages, min(n_passages, size), replace=False))
    starts = range(0, len(rows), _TAKEN_ROWS)
    taken = (index.take(rows[start : start + _TAKEN_ROWS], ["id", "reps"]) for start in starts)
    return sample_vectors((read_vectors(table)[0] for table in finite_rows(index.uri, taken)), size)


def sample_vectors(blocks: Iterable[np.ndarray], size: int = SAMPLE_SIZE, seed: int = 0) -> np.ndarray:
    """Return a uniform sample, [S, H] in order, of up to `size` vectors of a stream.

    The sample depends on the seed, not on the sizes of the blocks, floating [m, H] each.
    """
    generator = np.random.default_rng(seed)
    pieces: list[np.ndarray] = []
    draws: list[np.ndarray] = []
    for block_mH in blocks:
        # The sample are the vectors with the smallest random numbers.
        pieces.append(block_mH)
        draws.append(generator.random(len(block_mH)))
        if sum(map(len, draws)) > 2 * size:
            smallest_SH, smallest_S = _smallest(pieces, draws, size)
            pieces, draws = [smallest_SH], [smallest_S]
    assert pieces, "a stream has at least one block"
    return _smallest(pieces, draws, size)[0]


def _smallest(pieces: list[np.ndarray], draws: list[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    vectors_SH, drawn_S = np.concatenate(pieces), np.concatenate(draws)
    if len(drawn_S) <= size:
        return vectors_SH, drawn_S
    kept_S = np.sort(np.argpartition(drawn_S, size)[:size])
    return vectors_SH[kept_S], drawn_S[kept_S]
