"""The check of a whole index: every passage, every impact, every vector and its codes, in one pass over the table.

Memory is bounded by a batch of passages and 8 bytes for each id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from diffretriever.index.fragment_codes import FragmentCodes
from diffretriever.index.row_checks import (
    Found,
    code_problems,
    compressed_problems,
    impact_problems,
    text_problems,
    vector_problems,
)
from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.index.vectors import codec_of, with_vectors
from schemas.inspect import Problem, Verification
from schemas.manifest import IndexContents
from schemas.passages import passage_schema
from schemas.retriever import Bm25Retriever

if TYPE_CHECKING:
    from diffretriever.codecs.base import Codec

CodesOf: TypeAlias = Callable[[Any], FragmentCodes | None]
"""Opens the codes of a fragment; None where it has none."""

_BATCH_BYTES = 64 << 20
_MAX_BATCH_ROWS = 8192
_NAMED = 10


def verify(index: PassageIndex, contents: IndexContents, codes_of: CodesOf) -> Verification:
    """Check all that an index version holds against itself, its manifest and the counts in `contents`."""
    problems = Problems()
    _check_schema(index, problems)
    codec = _open_codec(index, problems)
    hashes: list[np.ndarray] = []
    vectors = coded = 0
    for fragment in index.fragments():
        codes = _open_codes(fragment, codes_of, problems)
        for batch in index.fragment_batches(fragment, index.dataset.schema.names, _batch_rows(index)):
            ids = batch.column("id").to_pylist()
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            for kind, wrong_P in _batch_problems(batch, index, codec, codes):
                problems.add(kind, [ids[row] for row in np.flatnonzero(wrong_P)])
            n_vectors = _n_vectors(batch, index)
            vectors += n_vectors
            coded += n_vectors if codes else 0
    rows = sum(map(len, hashes))
    problems.add("an id is there more than once", _repeated(index, hashes))
    _check_counts(index, contents, rows, problems)
    return Verification(rows=rows, vectors=vectors, coded_vectors=coded, problems=problems.found())


class Problems:
    """Counts what is wrong, by kind, and keeps the first places of each."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}

    def add(self, kind: str, places: list[str]) -> None:
        """Count problems of a kind, each by the id or key of where it is."""
        if not places:
            return
        self._totals[kind] += len(places)
        first = self._first.setdefault(kind, [])
        first += places[: _NAMED - len(first)]

    def found(self) -> list[Problem]:
        """Return what was counted."""
        return [Problem(kind=kind, total=total, first=self._first[kind]) for kind, total in self._totals.items()]


def _batch_problems(
    batch: pa.RecordBatch, index: PassageIndex, codec: Codec | None, codes: FragmentCodes | None
) -> Found:
    yield from text_problems(batch)
    if index.manifest.hidden_size is None:
        return
    yield from impact_problems(batch, index.manifest.vocab_size or 0)
    if codec is not None:
        kind, wrong_P = compressed_problems(batch, codec)
        yield kind, wrong_P
        if wrong_P.any():
            return
    elif index.manifest.decodes:
        return
    batch = with_vectors(index.uri, index.manifest, batch, [*batch.schema.names, "reps"])
    yield from vector_problems(batch, index.manifest)
    if codes is not None:
        yield from code_problems(batch, codes)


def _n_vectors(batch: pa.RecordBatch, index: PassageIndex) -> int:
    if index.manifest.hidden_size is None:
        return 0
    return len(batch.column("codes" if index.manifest.decodes else "reps").flatten())


def _batch_rows(index: PassageIndex) -> int:
    retriever = index.manifest.retriever
    if isinstance(retriever, Bm25Retriever):
        return _MAX_BATCH_ROWS
    # A vector as it is stored, and in fp32.
    row_bytes = retriever.max_vectors("passage") * (index.manifest.hidden_size or 0) * 6
    return max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def _open_codec(index: PassageIndex, problems: Problems) -> Codec | None:
    if index.manifest.codec is None:
        return None
    try:
        return codec_of(index.uri, index.manifest)
    except ValueError:
        problems.add("the file of the codec cannot be read", [index.manifest.codec.digest])
        return None


def _open_codes(fragment: Any, codes_of: CodesOf, problems: Problems) -> FragmentCodes | None:
    try:
        codes = codes_of(fragment)
    except (OSError, ValueError, KeyError):
        problems.add("the codes of a fragment cannot be read", [fragment_key(fragment)])
        return None
    if codes is None or _fits_together(codes):
        return codes
    problems.add("the codes of a fragment do not fit together", [fragment_key(fragment)])
    return None


def _fits_together(codes: FragmentCodes) -> bool:
    passages = {len(codes.rows_P), len(codes.errors_P), len(codes.norms_P), len(codes.vectors), len(codes.means)}
    vectors = {int(codes.vectors.offsets[-1]), len(codes.vectors.codes_NH), len(codes.vectors.scales_N)}
    means = {len(codes.means), len(codes.means.codes_NH), len(codes.means.scales_N)}
    ascending = bool((np.diff(codes.rows_P.astype(np.int64)) > 0).all())
    return len(passages) == len(vectors) == len(means) == 1 and ascending


def _repeated(index: PassageIndex, hashes: list[np.ndarray]) -> list[str]:
    """Return the ids that occur more than once; only those whose hashes do are held as texts."""
    values, counts = np.unique(np.concatenate(hashes or [np.empty(0, np.int64)]), return_counts=True)
    suspected = set(values[counts > 1].tolist())
    if not suspected:
        return []
    seen = Counter(i for i in _ids(index) if hash(i) in suspected)
    return [passage_id for passage_id, count in seen.items() if count > 1]


def _ids(index: PassageIndex) -> Iterator[str]:
    for batch in index.batches(["id"], 65536):
        yield from batch.column("id").to_pylist()


def _check_schema(index: PassageIndex, problems: Problems) -> None:
    stored = {field.name: _type_name(field) for field in index.dataset.schema}
    wanted = passage_schema(index.manifest.hidden_size, index.manifest.codec)
    wrong = [field.name for field in wanted if stored.get(field.name) != _type_name(field)]
    problems.add("a column is not as the manifest wants it", wrong)


def _type_name(field: pa.Field) -> str:
    # Lance does not keep whether the numbers within a vector may be null.
    return str(field.type).replace(" not null", "")


def _check_counts(index: PassageIndex, contents: IndexContents, rows: int, problems: Problems) -> None:
    recorded = next(v["metadata"] for v in index.dataset.versions() if v["version"] == index.version)
    counts = {
        "read": rows,
        "counted": contents.rows,
        "by collection": sum(contents.collections.values()),
        "recorded by Lance": int(recorded["total_rows"]),
    }
    if len(set(counts.values())) > 1:
        problems.add("counts differ", [", ".join(f"{count} {how}" for how, count in counts.items())])
