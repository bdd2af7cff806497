"""Describes and verifies an index: its texts, vectors, impacts and derived files.

Verification reads each passage once and needs memory for one batch plus 8 bytes per id.

Legend: P passages of a batch, N their vectors, T their impacts, H hidden size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections import Passage
from diffretriever.core.progress import track
from diffretriever.index.collection_records import unfinished_collections
from diffretriever.index.commits import table_uri
from diffretriever.index.damage import lost_version, readable, row_checksums, wrong_data_files, wrong_deletions
from diffretriever.index.derived import DamagedError, unless_damaged
from diffretriever.index.history import column_bytes, history
from diffretriever.index.manifest import table_schema
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_file, read_codec, read_packed, with_vectors
from diffretriever.schemas.accelerate import Kind
from diffretriever.schemas.index import ROW_CHECKSUM, IndexContents, IndexManifest
from diffretriever.schemas.inspect import FilesContents, IndexReport, Problem, Verification
from diffretriever.schemas.metadata import Columns
from diffretriever.schemas.retriever import is_neural
from diffretriever.search.accelerate import FILE_KINDS, kinds_of, sizes_of
from diffretriever.search.bm25 import bm25_folder, open_bm25
from diffretriever.search.dense.candidates import read_settings
from diffretriever.search.dense.codes import CODES
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.vectors.representations import any_per_text, offsets_of, read_vectors

if TYPE_CHECKING:
    from diffretriever.vectors.product import Codec

Wrong: TypeAlias = Iterator[tuple[str, np.ndarray]]
"""Pairs of a problem and the affected passages, bool [P]."""

_UNIT_TOLERANCE = 2.0**-10
"""Twice the relative fp16 rounding error (2^-11), to allow for rounding in the encoder."""
_BATCH_BYTES = 64 << 20
_MOST_ROWS = 8192
_NAMED = 10
"""Locations listed per problem."""


def inspect(index: PassageIndex, *, check: bool) -> IndexReport:
    """Describe an index and, with `check`, verify all of its data.

    Raises:
        ValueError: Lance cannot read the table.
    """
    with readable(index.uri, index.fragments):
        contents, kinds = index.contents(), kinds_of(index)
        return IndexReport(
            index=index.uri,
            fingerprint=index.manifest.fingerprint,
            contents=contents,
            columns=column_bytes(index),
            codes=next((_files(index, kind) for kind in kinds if kind != "postings"), None),
            postings=_files(index, "postings") if "postings" in kinds else None,
            candidates=unless_damaged(partial(read_settings, index)),
            versions=history(index),
            unfinished=unfinished_collections(index.uri),
            verification=verify(index, contents) if check else None,
            manifest=index.manifest,
        )


def _files(index: PassageIndex, kind: Kind) -> FilesContents:
    sizes = list(zip(index.fragments(), sizes_of(index, kind), strict=True))
    missing = [fragment for fragment, size in sizes if size is None]
    return FilesContents(
        fragments=len(sizes) - len(missing),
        missing_fragments=len(missing),
        missing_rows=sum(fragment.count_rows() for fragment in missing),
        bytes=sum(size or 0 for _, size in sizes),
    )


def verify(index: PassageIndex, contents: IndexContents) -> Verification:
    """Verify an index version against its manifest, its derived files and the counts in `contents`."""
    problems = _Problems()
    _check_schema(index, problems)
    _check_newest(index, problems)
    problems.add("data files are damaged", wrong_data_files(table_uri(index.uri), index.fragments()))
    wrong_files, unchecked_files = wrong_deletions(index.uri, index.dataset)
    problems.add("files of deleted rows are damaged", wrong_files)
    codec = _open_codec(index, problems)
    hashes: list[np.ndarray] = []
    vectors = 0
    for fragment in track(index.fragments(), "verifying", "passages", len(index), methodcaller("count_rows")):
        for batch in index.fragment_batches(fragment, index.dataset.schema.names, _batch_rows(index)):
            ids = batch.column("id").to_pylist()
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            for kind, wrong_P in _row_problems(batch, index, codec):
                problems.add(kind, [ids[row] for row in np.flatnonzero(wrong_P)])
            if index.manifest.hidden_size is not None:
                vectors += len(batch.column("codes" if index.manifest.codec else "reps").flatten())
    rows = sum(map(len, hashes))
    problems.add("an id occurs more than once", _repeated(index, hashes))
    _check_counts(index, contents, rows, problems)
    _check_derived_files(index, problems)
    return Verification(
        rows=rows,
        vectors=vectors,
        without_checksums=unchecked_files,
        problems=problems.listed(),
    )


def _check_newest(index: PassageIndex, problems: _Problems) -> None:
    table, newest = table_uri(index.uri), PassageIndex.open(index.uri).version
    if (lost := lost_version(table, newest)) is not None:
        problem = (
            f"version {lost} was committed, the newest manifest is of {newest}: restore {table}/_versions from a copy"
        )
        problems.add("the newest versions are missing", [problem])


class _Problems:
    """Counts problems by kind and keeps the first locations of each."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}

    def add(self, kind: str, locations: list[str]) -> None:
        if locations:
            self._totals[kind] += len(locations)
            first = self._first.setdefault(kind, [])
            first += locations[: _NAMED - len(first)]

    def listed(self) -> list[Problem]:
        return [Problem(kind=kind, total=total, first=self._first[kind]) for kind, total in self._totals.items()]


def _check_derived_files(index: PassageIndex, problems: _Problems) -> None:
    bm25 = "the stored BM25 index is damaged"
    checks: list[tuple[str, Callable[[], object]]] = [
        (bm25, bm25_folder(index).check),
        (bm25, partial(open_bm25, index)),
    ]
    if "codes" in kinds_of(index):
        checks.append(("the settings of the candidate index are damaged", partial(read_settings, index)))
        sketches = "the sketches of a fragment are damaged"
        checks += [(sketches, partial(CandidateIndex.check, CODES.folder_of(index, f))) for f in index.fragments()]
    for kind in kinds_of(index):
        damaged = f"the {kind} of a fragment are damaged"
        checks += [(damaged, partial(FILE_KINDS[kind].check, index, fragment)) for fragment in index.fragments()]
    for problem, check in checks:
        try:
            check()
        except DamagedError as error:
            problems.add(problem, [str(error)])


def _row_problems(batch: pa.RecordBatch, index: PassageIndex, codec: Codec | None) -> Wrong:
    yield "the digest differs from title, text and metadata", _has_other_digest(batch, index.manifest.metadata)
    if ROW_CHECKSUM in batch.schema.names:  # `_check_schema` reports a missing column.
        checksums_P = row_checksums(batch, [name for name in batch.schema.names if name != "_rowaddr"])
        yield "a row differs from its checksum", checksums_P != batch.column(ROW_CHECKSUM).to_numpy()
    if index.manifest.hidden_size is None:
        return
    yield from _impact_problems(batch, index.manifest.vocab_size or 0)
    if codec is not None:
        wrong_P = np.diff(read_packed(batch)[1]) != _lengths(batch, "slot_tokens")
        yield "codes are missing", wrong_P
        if wrong_P.any():
            return
    elif index.manifest.codec:
        return
    if index.manifest.codec:
        batch = with_vectors(index.uri, index.manifest, batch, [*batch.schema.names, "reps"])
    yield from _vector_problems(batch, index.manifest)


def _batch_rows(index: PassageIndex) -> int:
    retriever = index.manifest.retriever
    if not is_neural(retriever):
        return _MOST_ROWS
    # 2 bytes in fp16 and 4 in fp32.
    row_bytes = retriever.max_vectors("passage") * (index.manifest.hidden_size or 0) * 6
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // row_bytes))


def _open_codec(index: PassageIndex, problems: _Problems) -> Codec | None:
    if index.manifest.codec is None:
        return None
    try:
        # Bypasses the cache.
        return read_codec(codec_file(index.uri, index.manifest.codec.digest), index.manifest.codec.digest)
    except ValueError as error:
        problems.add("the file of the codec cannot be read", [str(error)])
        return None


def _has_other_digest(batch: pa.RecordBatch, metadata: Columns | None) -> np.ndarray:
    rows = batch.select(["id", "title", "text", *(metadata or {})]).to_pylist()
    texts = [(row.pop("id"), row.pop("title"), row.pop("text")) for row in rows]
    metadata_of_rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    computed = [Passage(*text, metadata=values).digest for text, values in zip(texts, metadata_of_rows, strict=True)]
    return np.array([a != b for a, b in zip(computed, batch.column("digest").to_pylist(), strict=True)], bool)


def _vector_problems(batch: pa.RecordBatch, manifest: IndexManifest) -> Wrong:
    retriever = manifest.retriever
    assert is_neural(retriever), "BM25 indexes have no vectors"
    stored_NH, offsets = read_vectors(batch)
    counts_P, most = np.diff(offsets), retriever.max_vectors("passage")
    vectors_NH = stored_NH.astype(np.float32)
    norms_N = np.sqrt(np.einsum("nh,nh->n", vectors_NH, vectors_NH))
    finite_N = np.isfinite(norms_N)
    yield f"the number of vectors is not 1 to {most}", (counts_P < 1) | (counts_P > most)
    yield "vectors and slot tokens differ in number", counts_P != _lengths(batch, "slot_tokens")
    yield "a vector is not finite", any_per_text(~finite_N, offsets)
    if retriever.has_unit_vectors:
        yield "a vector is not of length 1", any_per_text(finite_N & (np.abs(norms_N - 1) > _UNIT_TOLERANCE), offsets)


def _impact_problems(batch: pa.RecordBatch, vocab_size: int) -> Wrong:
    ids_T = batch.column("impact_ids").flatten().to_numpy()
    weights_T = batch.column("impact_weights").flatten().to_numpy()
    id_offsets = offsets_of(_lengths(batch, "impact_ids"))
    weight_offsets = offsets_of(_lengths(batch, "impact_weights"))
    starts_T = np.zeros(len(ids_T) + 1, bool)
    starts_T[id_offsets] = True
    falls_T = np.diff(ids_T, prepend=-1) <= 0
    yield "impact ids and weights differ in number", np.diff(id_offsets) != np.diff(weight_offsets)
    yield "impact ids do not ascend", any_per_text(falls_T & ~starts_T[:-1], id_offsets)
    yield (
        f"an impact id is not in the vocabulary of {vocab_size}",
        any_per_text((ids_T < 0) | (ids_T >= vocab_size), id_offsets),
    )
    yield (
        "an impact's weight is not positive and finite",
        any_per_text(~(np.isfinite(weights_T) & (weights_T > 0)), weight_offsets),
    )


def _lengths(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return pc.list_value_length(batch.column(name)).to_numpy().astype(np.int64)


def _repeated(index: PassageIndex, hashes: list[np.ndarray]) -> list[str]:
    # Counts only ids with a repeated hash, to save memory.
    values, counts = np.unique(np.concatenate(hashes or [np.empty(0, np.int64)]), return_counts=True)
    suspected = set(values[counts > 1].tolist())
    if not suspected:
        return []
    batches = index.batches(["id"], 65536)
    seen = Counter(i for batch in batches for i in batch.column("id").to_pylist() if hash(i) in suspected)
    return [passage_id for passage_id, count in seen.items() if count > 1]


def _check_schema(index: PassageIndex, problems: _Problems) -> None:
    stored = {field.name: _type_name(field) for field in index.dataset.schema}
    expected = table_schema(index.manifest)
    wrong = [field.name for field in expected if stored.get(field.name) != _type_name(field)]
    problems.add("a column differs from the manifest", wrong)


def _type_name(field: pa.Field) -> str:
    # Lance does not store the nullability of list items.
    return str(field.type).replace(" not null", "")


def _check_counts(index: PassageIndex, contents: IndexContents, rows: int, problems: _Problems) -> None:
    recorded = next(v["metadata"] for v in index.dataset.versions() if v["version"] == index.version)
    counts = {
        "read": rows,
        "counted": contents.rows,
        "by collection": sum(contents.collections.values()),
        "recorded by Lance": int(recorded["total_rows"]),
    }
    if len(set(counts.values())) > 1:
        problems.add("counts differ", [", ".join(f"{count} {how}" for how, count in counts.items())])
