"""The check of a whole index: texts, vectors, impacts, and the files that searches keep beside the table.

One pass compares every passage with itself, its manifest and its 8-bit codes; another every impact with its posting.
Memory is bounded by a batch of passages, 8 bytes for each id, and 8 for each passage of a fragment.

Legend: P passages of a batch, N their vectors, T their impacts, H hidden size, W bytes of a packed vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections import Passage
from diffretriever.index.damage import row_checksums, wrong_data_files
from diffretriever.index.derived import DamagedError
from diffretriever.index.manifest import table_schema
from diffretriever.index.table import PassageIndex, rows_written, table_uri
from diffretriever.index.vectors import codec_place, read_codec, read_packed, with_vectors
from diffretriever.progress import track
from diffretriever.representations import any_of_each, offsets_of, read_impacts, read_vectors, rows_of
from diffretriever.schemas.index import ROW_CHECKSUM, IndexContents, IndexManifest
from diffretriever.schemas.inspect import Problem, Verification
from diffretriever.schemas.metadata import Columns, Scalar
from diffretriever.schemas.retriever import is_neural
from diffretriever.scoring.maxsim import Codes
from diffretriever.search.dense.codes import FragmentCodes
from diffretriever.search.dense.compressed import FragmentPacked
from diffretriever.search.sparse.kernels import digest_impacts
from diffretriever.search.sparse.postings import FragmentPostings

if TYPE_CHECKING:
    from diffretriever.codecs.product import Codec

Files = TypeVar("Files")
Wrong: TypeAlias = Iterator[tuple[str, np.ndarray]]
"""Kinds of problems, each with a bool [P]: the passages that have it."""
CodesOf: TypeAlias = Callable[[Any], FragmentCodes | None]
"""Opens the codes of a fragment; None where it has none."""
PackedOf: TypeAlias = Callable[[Any], FragmentPacked | None]
"""Opens the mapped packed vectors of a fragment; None where it has none."""
PostingsOf: TypeAlias = Callable[[Any], FragmentPostings | None]
"""Opens the postings of a fragment; None where it has none."""

_UNIT_TOLERANCE = 2.0**-10
"""Rounding to fp16 changes each number by up to 2^-11 of itself, and so a vector's length by no more than that; twice
that leaves room for the encoder's own last bits."""
_NORM_TOLERANCE = 1e-5
"""Lengths of vectors are kept in fp32."""
_HALF_A_STEP = 0.501
"""Of a code: what rounding can take, and some for sums in fp32."""
_BATCH_BYTES = 64 << 20
_MOST_ROWS = 8192
_NAMED = 10
"""Places of each problem that are named."""
_POSTINGS_COLUMNS = ("id", "impact_ids", "impact_weights")


def verify(index: PassageIndex, contents: IndexContents, codes_of: CodesOf, packed_of: PackedOf) -> Verification:
    """Check all that an index version holds against itself, its manifest and the counts in `contents`.

    Args:
        index: the version.
        contents: what was counted of it.
        codes_of: opens the codes of a fragment.
        packed_of: opens the packed vectors of a fragment.
    """
    problems = Problems()
    _check_schema(index, problems)
    problems.add("data files are damaged", wrong_data_files(table_uri(index.uri), index.fragments()))
    wrong_deletions, unchecked_deletions = index.wrong_deletions()
    problems.add("files of deleted rows are damaged", wrong_deletions)
    codec = _open_codec(index, problems)
    hashes: list[np.ndarray] = []
    vectors = coded = 0
    for fragment in track(index.fragments(), "verifying", "passages", len(index), _rows_of):
        codes = _opened("codes", codes_of, fragment, problems)
        packed = _opened("packed vectors", packed_of, fragment, problems)
        for batch in index.fragment_batches(fragment, index.dataset.schema.names, _batch_rows(index)):
            ids = batch.column("id").to_pylist()
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
            for kind, wrong_P in _row_problems(batch, index, codec, codes, packed):
                problems.add(kind, [ids[row] for row in np.flatnonzero(wrong_P)])
            n_vectors = _n_vectors(batch, index)
            vectors += n_vectors
            coded += n_vectors if codes or packed else 0
    rows = sum(map(len, hashes))
    problems.add("an id is there more than once", _repeated(index, hashes))
    _check_counts(index, contents, rows, problems)
    return Verification(
        rows=rows,
        vectors=vectors,
        coded_vectors=coded,
        without_checksums=unchecked_deletions,
        problems=problems.found(),
    )


def verify_postings(index: PassageIndex, postings_of: PostingsOf) -> tuple[int, list[Problem]]:
    """Return how many impacts of an index version were compared with their postings, and what is wrong with these."""
    problems = Problems()
    compared = 0
    for fragment in track(index.fragments(), "verifying postings", "passages", len(index), _rows_of):
        postings = _opened("postings", postings_of, fragment, problems)
        if postings is None:
            continue
        digests = postings.segment.passage_digests()
        for batch in index.fragment_batches(fragment, _POSTINGS_COLUMNS, _MOST_ROWS):
            ids = batch.column("id").to_pylist()
            compared += len(batch.column("impact_ids").flatten())
            for kind, wrong_P in _posting_problems(batch, postings, digests):
                problems.add(kind, [ids[row] for row in np.flatnonzero(wrong_P)])
    return compared, problems.found()


def _rows_of(fragment: Any) -> int:
    return int(fragment.count_rows())


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


def _row_problems(
    batch: pa.RecordBatch,
    index: PassageIndex,
    codec: Codec | None,
    codes: FragmentCodes | None,
    packed: FragmentPacked | None,
) -> Wrong:
    yield from text_problems(batch, index.manifest.metadata)
    if ROW_CHECKSUM in batch.schema.names:  # `_check_schema` names a column that is lacking.
        yield "a row is not what was written", _differs(batch)
    if index.manifest.hidden_size is None:
        return
    yield from impact_problems(batch, index.manifest.vocab_size or 0)
    if codec is not None:
        kind, wrong_P = packed_problems(batch)
        yield kind, wrong_P
        if wrong_P.any():
            return
        if packed is not None:
            yield from _mapped_problems(batch, packed)
    elif index.manifest.decodes:
        return
    if index.manifest.decodes:
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
    if not is_neural(retriever):
        return _MOST_ROWS
    # A vector as it is stored, and in fp32.
    row_bytes = retriever.max_vectors("passage") * (index.manifest.hidden_size or 0) * 6
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // row_bytes))


def _open_codec(index: PassageIndex, problems: Problems) -> Codec | None:
    if index.manifest.codec is None:
        return None
    try:
        # Not the one that this process may have read before.
        return read_codec(codec_place(index.uri, index.manifest.codec.digest), index.manifest.codec.digest)
    except ValueError as error:
        problems.add("the file of the codec cannot be read", [str(error)])
        return None


def _opened(what: str, files_of: Callable[[Any], Files | None], fragment: Any, problems: Problems) -> Files | None:
    """Return the files of a fragment; None where it has none, or damaged ones, which are a problem."""
    try:
        return files_of(fragment)
    except DamagedError as error:
        problems.add(f"the {what} of a fragment are damaged", [str(error)])
        return None


def _differs(batch: pa.RecordBatch) -> np.ndarray:
    made_P = row_checksums(batch, [name for name in batch.schema.names if name != "_rowaddr"])
    differs_P: np.ndarray = made_P != batch.column(ROW_CHECKSUM).to_numpy()
    return differs_P


def text_problems(batch: pa.RecordBatch, metadata: Columns | None = None) -> Wrong:
    """Compare digests with titles, texts and what there is of the columns `metadata`."""
    rows = batch.select(["id", "title", "text", "digest", *(metadata or {})]).to_pylist()
    digests = [row.pop("digest") for row in rows]
    yield (
        "the digest is not that of title, text and metadata",
        np.array([_passage(**row).digest != digest for row, digest in zip(rows, digests, strict=True)], bool),
    )


def _passage(id: str, title: str, text: str, **metadata: Scalar | None) -> Passage:  # noqa: A002 (the column's name)
    known = {name: value for name, value in metadata.items() if value is not None}
    return Passage(id, title, text, metadata=known)


def vector_problems(batch: pa.RecordBatch, manifest: IndexManifest) -> Wrong:
    """Check how many vectors there are, and that they are finite and, where the retriever makes them so, unit."""
    retriever = manifest.retriever
    assert is_neural(retriever), "BM25 indexes hold no vectors"
    stored_NH, offsets = read_vectors(batch)
    counts_P, most = np.diff(offsets), retriever.max_vectors("passage")
    vectors_NH = stored_NH.astype(np.float32)
    norms_N = np.sqrt(np.einsum("nh,nh->n", vectors_NH, vectors_NH))
    finite_N = np.isfinite(norms_N)
    yield f"there are not 1 to {most} vectors", (counts_P < 1) | (counts_P > most)
    yield "vectors and slot words differ in number", counts_P != _lengths(batch, "slot_tokens")
    yield "a vector is not finite", any_of_each(~finite_N, offsets)
    if retriever.has_unit_vectors:
        yield "a vector is not of length 1", any_of_each(finite_N & (np.abs(norms_N - 1) > _UNIT_TOLERANCE), offsets)


def impact_problems(batch: pa.RecordBatch, vocab_size: int) -> Wrong:
    """Check that impacts are sorted by entry of the vocabulary, and positive."""
    ids_T = batch.column("impact_ids").flatten().to_numpy()
    weights_T = batch.column("impact_weights").flatten().to_numpy()
    id_offsets = offsets_of(_lengths(batch, "impact_ids"))
    weight_offsets = offsets_of(_lengths(batch, "impact_weights"))
    starts_T = np.zeros(len(ids_T) + 1, bool)
    starts_T[id_offsets] = True
    falls_T = np.diff(ids_T, prepend=-1) <= 0
    yield "impact ids and weights differ in number", np.diff(id_offsets) != np.diff(weight_offsets)
    yield "impact ids do not ascend", any_of_each(falls_T & ~starts_T[:-1], id_offsets)
    yield (
        f"an impact id is not in the vocabulary of {vocab_size}",
        any_of_each((ids_T < 0) | (ids_T >= vocab_size), id_offsets),
    )
    yield (
        "an impact's weight is not positive and finite",
        any_of_each(~(np.isfinite(weights_T) & (weights_T > 0)), weight_offsets),
    )


def packed_problems(batch: pa.RecordBatch) -> tuple[str, np.ndarray]:
    """Check that there is a packed vector for each slot word."""
    _, offsets = read_packed(batch)
    return "codes are missing", np.diff(offsets) != _lengths(batch, "slot_tokens")


def _mapped_problems(batch: pa.RecordBatch, packed: FragmentPacked) -> Wrong:
    """Compare packed vectors in the table with those in the mapped files."""
    packed_NW, offsets = read_packed(batch)
    places_P, there_P = _places(batch, packed.rows_P)
    yield "the fragment's packed vectors leave the passage out", ~there_P
    known_C = np.flatnonzero(there_P)
    known_C = known_C[np.diff(packed.offsets)[places_P[known_C]] == np.diff(offsets)[known_C]]
    kept_C = places_P[known_C]
    own_N, own_offsets = rows_of(offsets, known_C)
    differs_N = (packed_NW[own_N] != packed.packed_NW[rows_of(packed.offsets, kept_C)[0]]).any(axis=1)
    differs_P = there_P.copy()
    differs_P[known_C] = any_of_each(differs_N, own_offsets)
    yield "packed vectors beside the table differ from those in it", differs_P


def code_problems(batch: pa.RecordBatch, codes: FragmentCodes) -> Wrong:
    """Compare stored vectors with their codes, whose error and length bounds every search relies on."""
    stored_NH, offsets = read_vectors(batch)
    places_P, coded_P = _places(batch, codes.rows_P)
    yield "the fragment's codes leave the passage out", ~coded_P
    if codes.slots is None:
        yield "codes of mean vectors are of others", _has_other_mean(stored_NH, offsets, codes, places_P, coded_P)
        return
    slots = codes.slots
    counts_P = np.diff(slots.vectors.offsets)[places_P] if coded_P.any() else np.zeros(len(coded_P), np.int64)
    comparable_P = coded_P & (counts_P == np.diff(offsets))
    yield "codes and vectors differ in number", coded_P & ~comparable_P

    errors_P, norms_P = np.zeros(len(coded_P)), np.zeros(len(coded_P))
    same_P = np.ones(len(coded_P), bool)
    for row in np.flatnonzero(comparable_P):
        place = places_P[row]
        vectors = stored_NH[slice(*offsets[row : row + 2])].astype(np.float64)
        own = slice(*slots.vectors.offsets[place : place + 2])
        if slots.copy_NH is not None:
            same_P[row] = np.array_equal(
                slots.copy_NH[own].view(np.uint16), stored_NH[slice(*offsets[row : row + 2])].view(np.uint16)
            )
        errors_P[row] = np.linalg.norm(vectors - _decode(slots.vectors, own), axis=1).max(initial=0)
        norms_P[row] = np.linalg.norm(vectors, axis=1).max(initial=0)
    yield "vectors beside the table differ from those in it", ~same_P
    yield "codes are further off than they say", comparable_P & ~(errors_P <= slots.errors_P[places_P])
    yield (
        "a vector is longer than its codes say",
        comparable_P & ~(norms_P <= slots.norms_P[places_P] * (1 + _NORM_TOLERANCE)),
    )


def _has_other_mean(
    stored_NH: np.ndarray, offsets: np.ndarray, codes: FragmentCodes, places_P: np.ndarray, coded_P: np.ndarray
) -> np.ndarray:
    """Return bool [P]: the codes of a passage's mean are off by more than rounding, half a step a number."""
    wrong_P = np.zeros(len(coded_P), bool)
    for row in np.flatnonzero(coded_P & (np.diff(offsets) > 0)):
        place = places_P[row]
        mean_H = stored_NH[slice(*offsets[row : row + 2])].astype(np.float64).mean(axis=0)
        off_H = np.abs(mean_H - _decode(codes.means, slice(place, place + 1))[0])
        wrong_P[row] = not off_H.max() <= _HALF_A_STEP * codes.means.scales_N[place]
    return wrong_P


def _decode(codes: Codes, rows: slice) -> np.ndarray:
    # The codes of a vector that is not finite have an endless scale, which is a problem reported elsewhere.
    with np.errstate(invalid="ignore"):
        return codes.codes_NH[rows] * codes.scales_N[rows, None].astype(np.float64)


def _posting_problems(batch: pa.RecordBatch, postings: FragmentPostings, digests: np.ndarray) -> Wrong:
    """Compare passages with the postings of their fragment: uint64 digests, one for each passage in those."""
    places_P, known_P = _places(batch, postings.rows_P)
    yield "the fragment's postings leave the passage out", ~known_P
    term_ids, weights, offsets = read_impacts(batch)
    if len(term_ids) != len(weights):
        yield "postings and impacts differ", known_P
        return
    expected_P = np.zeros(len(known_P), np.uint64)
    digest_impacts(term_ids, weights.view(np.uint32), offsets, expected_P)
    differs_P = known_P.copy()
    differs_P[known_P] = digests[places_P[known_P]] != expected_P[known_P]
    yield "postings and impacts differ", differs_P


def _places(batch: pa.RecordBatch, known_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each passage of a batch in the files of its fragment, and bool [P]: whether it is there."""
    rows_P = rows_written(batch.column("_rowaddr").to_numpy())
    places_P = np.minimum(np.searchsorted(known_rows, rows_P), max(0, len(known_rows) - 1))
    there_P = known_rows[places_P] == rows_P if len(known_rows) else np.zeros(len(rows_P), bool)
    return places_P, there_P


def _lengths(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return pc.list_value_length(batch.column(name)).to_numpy().astype(np.int64)


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
    wanted = table_schema(index.manifest)
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
