"""Builds, repairs and removes the derived files that make search fast.

Each fragment can have 8-bit codes (`codes`) or, in a compressed index, quantised vectors (`packed`), and an inverted
index of its impacts (`postings`). The index version has one BM25 index. The candidate index is calibrated on the codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from diffretriever.core.progress import track
from diffretriever.index.derived import DerivedFolder, folders_in, for_all, unless_damaged
from diffretriever.index.fragment_files import FileKind, lacking
from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.schemas.accelerate import AccelerateJob, CandidateSettings, CodeLayout, Kind
from diffretriever.schemas.base import Model
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.bm25 import store_bm25
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.candidates import (
    CandidateSearch,
    choose_count,
    complete_candidates,
    counts_to_try,
    milliseconds,
    read_settings,
    sample_queries,
    write_settings,
)
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.codes import CODES, build_fragment_codes, layout_of, open_segments
from diffretriever.search.dense.compressed import PACKED, build_fragment_packed
from diffretriever.search.dense.sketch import SKETCHES, CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.sparse.postings import POSTINGS, build_fragment_postings, may_have_postings

FILE_KINDS: Mapping[Kind, FileKind[Any]] = {"codes": CODES, "packed": PACKED, "postings": POSTINGS}

_MOST_TEXTS = 2_000_000
"""Largest index whose BM25 statistics are built automatically: about 1 kB of memory per short passage."""
_SAMPLED_QUERIES = 200
_ABANDONED_SECONDS = 24 * 3600
"""Age from which an unfinished folder counts as left by a killed job."""


class Missing(NamedTuple):
    """A fragment with missing derived files."""

    fragment: int
    """Lance's fragment id."""
    kinds: tuple[Kind, ...]
    passages: int
    layout: CodeLayout = "vectors"
    """What its codes store."""


Make: TypeAlias = Callable[[PassageIndex, Sequence[Missing]], None]
"""Builds the missing files; returns when all are written."""


class KindSummary(Model):
    """The derived files of one kind."""

    built: int
    """Fragments whose files this job built."""
    bytes: int
    """Total size of the files of all fragments."""


class AccelerateSummary(Model):
    """The result of an accelerate job."""

    files: dict[Kind, KindSummary]
    """Files of each kind that the index can have."""
    candidates: CandidateSettings | None
    """The candidate index, if the job calibrated one."""
    only_streams: bool
    """Whether the codes store means only and there is no candidate index to use them."""


def make_missing(index: PassageIndex, missing: Sequence[Missing]) -> None:
    """Build the missing files, fragment by fragment. A killed run leaves only complete files; the next one resumes."""
    total = sum(entry.passages for entry in missing)
    for entry in track(missing, f"codes and postings → {index.uri}", "passages", total, lambda entry: entry.passages):
        fragment = index.dataset.get_fragment(entry.fragment)
        if "codes" in entry.kinds:
            # On a store, sketches would outlive the codes that they were made of.
            CODES.folder_of(index, fragment).below(SKETCHES).remove()
            build_fragment_codes(index, fragment, entry.layout)
        if "packed" in entry.kinds:
            build_fragment_packed(index, fragment)
        if "postings" in entry.kinds:
            build_fragment_postings(index, fragment)


def complete(index: PassageIndex, make: Make = make_missing, layout: CodeLayout | None = None) -> list[Missing]:
    """Build missing derived files, remove those of deleted fragments, and return the entries that were missing.

    BM25 statistics are stored too, up to 2 million passages. `layout` selects what codes store. None keeps the index's
    setting; the default of a new index is `vectors`.

    Raises:
        ValueError: a passage has invalid vectors or impacts.
    """
    missing = missing_files(index)
    if missing:
        layout = layout or _current_layout(index)
        make(index, [entry._replace(layout=layout) for entry in missing])
    remove_old(index)
    if len(index) <= _MOST_TEXTS:
        store_bm25(index)
    return missing


def accelerate(job: AccelerateJob, make: Make = make_missing) -> AccelerateSummary:
    """Build missing codes and postings, rebuild damaged ones, and calibrate a candidate index if the job requests it.

    Existing files are verified by checksum. An existing candidate index is extended to new fragments.

    Raises:
        ValueError: there is no index, it has neither vectors nor impacts, `beside` is set and it has no codes, or
            candidates are requested for an empty or compressed index.
    """
    index = PassageIndex.open(job.index)
    _refuse(index, job)
    for kind in kinds_of(index):
        FILE_KINDS[kind].remove_damaged(index)
    if job.beside is not None:
        _remove_other_codes(index, job.beside)
    missing = complete(index, make, job.beside)
    settings = None
    if job.candidates:
        settings = _calibrate(index, job)
    else:
        complete_candidates(index)
    files = {
        kind: KindSummary(
            built=sum(kind in entry.kinds for entry in missing),
            bytes=sum(size or 0 for size in sizes_of(index, kind)),
        )
        for kind in kinds_of(index)
    }
    only_streams = _current_layout(index) == "means" and unless_damaged(partial(read_settings, index)) is None
    return AccelerateSummary(files=files, candidates=settings, only_streams=only_streams)


def _refuse(index: PassageIndex, job: AccelerateJob) -> None:
    if job.candidates and index.manifest.codec:
        raise ValueError(
            f"{index.uri} is compressed, and a candidate index stores vectors, which would undo the "
            "compression: leave out --candidates; search scores all passages by their codes"
        )
    if job.candidates and not len(index):
        raise ValueError(f"{index.uri} has no passages for a candidate index: encode some first")
    if job.beside is not None and "codes" not in kinds_of(index):
        raise ValueError(
            f"{index.uri} has no 8-bit codes, being compressed or without vectors, so --beside does not apply: "
            "leave it out"
        )
    if not kinds_of(index):
        raise ValueError(f"{index.uri} has neither vectors nor impacts, so it can have neither codes nor postings")


def _calibrate(index: PassageIndex, job: AccelerateJob) -> CandidateSettings:
    """Choose the number of candidates that reaches the recall; all passages where the exact scan is as fast."""
    from diffretriever.search import encoder_of

    CandidateIndex.build(index, open_segments(index)[0])
    index.refresh()
    options = SearchOptions(index=job.index, backbone=job.backbone, adapter=job.adapter, search_budget="exact")
    encoder = encoder_of(index, options)
    scan = open_dense(index, options, encoder.facts.device)
    stream = scan.stream if isinstance(scan, CodedScan) else scan
    assert isinstance(stream, StreamingScan), "codes were built for every fragment, or all is scanned"
    queries = sample_queries(index, encoder, _SAMPLED_QUERIES)
    exact, scanned = scan.search(queries, job.top_k), milliseconds(scan, queries, job.top_k)
    candidate_index = CandidateIndex.open(open_segments(index)[0])
    count, measured = choose_count(candidate_index, queries, exact, counts_to_try(job.top_k, len(index)), job.recall)
    fast = milliseconds(CandidateSearch(candidate_index, [], stream, count), queries, job.top_k)
    if count >= len(index) or fast >= scanned:
        count, measured, fast = len(index), 1.0, scanned
    settings = CandidateSettings(
        search_budget=count,
        top_k=job.top_k,
        target=job.recall,
        measured=measured,
        milliseconds=fast,
        sample=len(queries),
        passages=len(index),
        version=index.version,
    )
    write_settings(index, settings)
    return settings


def _current_layout(index: PassageIndex) -> CodeLayout:
    names = [name for name in folders_in(index.uri, CODES.name) if not name.startswith(".")]
    codes = [DerivedFolder(index.uri, f"{CODES.name}/{name}") for name in names]
    layouts = {layout_of(files) for files in for_all(index.uri, codes, DerivedFolder.files) if files}
    return "means" if "means" in layouts else "vectors"


def _remove_other_codes(index: PassageIndex, layout: CodeLayout) -> None:
    folders = [CODES.folder_of(index, fragment) for fragment in index.fragments()]
    for folder, files in zip(folders, for_all(index.uri, folders, DerivedFolder.files), strict=True):
        if files and layout_of(files) != layout:
            folder.remove()


def kinds_of(index: PassageIndex) -> tuple[Kind, ...]:
    """Return the kinds of derived files that an index can have."""
    kinds: list[Kind] = []
    if index.manifest.hidden_size is not None:
        # Codes store the decoded vectors too, which would undo the compression.
        kinds.append("packed" if index.manifest.codec else "codes")
    if may_have_postings(index):
        kinds.append("postings")
    return tuple(kinds)


def missing_files(index: PassageIndex) -> list[Missing]:
    """Return the fragments with missing files, in table order."""
    without = {kind: {f.fragment_id for f in lacking(index, FILE_KINDS[kind])} for kind in kinds_of(index)}
    return [
        Missing(fragment.fragment_id, kinds, fragment.count_rows())
        for fragment in index.fragments()
        if (kinds := tuple(kind for kind, numbers in without.items() if fragment.fragment_id in numbers))
    ]


def sizes_of(index: PassageIndex, kind: Kind) -> list[int | None]:
    """Return the bytes of each fragment's files, in table order; None for a fragment without files."""
    folders = [FILE_KINDS[kind].folder_of(index, fragment) for fragment in index.fragments()]
    return for_all(index.uri, folders, DerivedFolder.size)


def remove_old(index: PassageIndex) -> None:
    """Remove files that no version of the table uses, and unfinished files of killed jobs."""
    current = _in_use([index])
    unused = [(kind, name) for kind in FILE_KINDS for name in folders_in(index.uri, kind) if name not in current[kind]]
    if not unused:
        # Saves opening every version.
        return
    used = _in_use(index.versions())
    for kind, name in unused:
        folder = DerivedFolder(index.uri, f"{kind}/{name}")
        if _is_abandoned(folder) if name.startswith(".") else name not in used[kind]:
            folder.remove()


def _in_use(versions: Iterable[PassageIndex]) -> dict[Kind, set[str]]:
    names: dict[Kind, set[str]] = {kind: set() for kind in FILE_KINDS}
    for version in versions:
        keys = {fragment_key(fragment) for fragment in version.fragments()}
        for kind in kinds_of(version):
            names[kind] |= keys
    return names


def _is_abandoned(temporary: DerivedFolder) -> bool:
    # A running job's unfinished files look the same. Object stores never have unfinished files.
    return temporary.is_local and time.time() - temporary.path.stat().st_mtime > _ABANDONED_SECONDS
