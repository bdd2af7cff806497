"""The files beside an index that make its search fast: which are missing, making those, removing old ones.

Each fragment can have 8-bit codes of its vectors (`codes`), or what a codec has in place of them (`packed`), and an
inverted index of its impacts (`postings`); a candidate index is calibrated over the codes. The version as a whole has
BM25 of its texts. Run again, the job makes what has become missing or is damaged.
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
from diffretriever.schemas.accelerate import AccelerateJob, Beside, CandidateSettings, Kind
from diffretriever.schemas.base import Model
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.bm25 import keep_bm25
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
from diffretriever.search.dense.codes import CODES, FragmentCodes, build_fragment_codes, open_segments
from diffretriever.search.dense.compressed import PACKED, build_fragment_packed
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.sparse.postings import POSTINGS, build_fragment_postings, may_have_postings

FILE_KINDS: Mapping[Kind, FileKind[Any]] = {"codes": CODES, "packed": PACKED, "postings": POSTINGS}
"""The files of each."""

_MOST_TEXTS = 2_000_000
"""Whose words are counted unasked: of short passages, that takes some 1 kB of memory each."""
_SAMPLED_QUERIES = 200
_ABANDONED_SECONDS = 24 * 3600
"""A folder half-made for longer than this belongs to no running job."""


class Missing(NamedTuple):
    """A fragment that lacks files."""

    fragment: int
    """Lance's number of it."""
    kinds: tuple[Kind, ...]
    passages: int
    beside: Beside = "vectors"
    """What its codes are to hold."""


Make: TypeAlias = Callable[[PassageIndex, Sequence[Missing]], None]
"""Makes what is missing; returns when all of it is there."""


class Kept(Model):
    """The files of one kind beside an index."""

    made: int
    """Fragments that got theirs just now."""
    bytes: int
    """Size of all of them."""


class Accelerated(Model):
    """What an accelerate job did."""

    files: dict[Kind, Kept]
    """Of each kind that the index can have."""
    candidates: CandidateSettings | None
    """The candidate index, if one was asked for."""
    only_streams: bool
    """Whether there are codes of means alone, and no candidate index that proposes passages by them."""


def make_missing(index: PassageIndex, missing: Sequence[Missing]) -> None:
    """Make files of one fragment after the other. Killed, it leaves whole files only, and goes on when run again."""
    total = sum(each.passages for each in missing)
    for each in track(missing, f"codes and postings → {index.uri}", "passages", total, lambda each: each.passages):
        fragment = index.dataset.get_fragment(each.fragment)
        if "codes" in each.kinds:
            build_fragment_codes(index, fragment, each.beside)
        if "packed" in each.kinds:
            build_fragment_packed(index, fragment)
        if "postings" in each.kinds:
            build_fragment_postings(index, fragment)


def complete(index: PassageIndex, make: Make = make_missing, beside: Beside | None = None) -> list[Missing]:
    """Make the files that an index version lacks, and remove those of deleted fragments; return the missing ones.

    BM25 of the texts is stored too, unless there are too many texts to count their words unasked. If it is killed, run
    it again. `beside` is what codes are to store; None: as the present ones, or else the vectors too.

    Raises:
        ValueError: a passage's vectors or impacts are not sound; the message names it.
    """
    missing = missing_files(index)
    if missing:
        wanted = beside or _beside_now(index)
        make(index, [each._replace(beside=wanted) for each in missing])
    remove_old(index)
    if len(index) <= _MOST_TEXTS:
        keep_bm25(index)
    return missing


def accelerate(job: AccelerateJob, make: Make = make_missing) -> Accelerated:
    """Make missing codes and postings, drop those of fragments that are gone, calibrate a candidate index if asked to.

    One that was calibrated before is completed. Files that are there are read and compared with their checksums, and
    damaged ones made anew.

    Raises:
        ValueError: no index there, one without vectors and sparse scores, or a compressed or an empty one for which
            candidates are asked.
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
        kind: Kept(
            made=sum(kind in each.kinds for each in missing),
            bytes=sum(size or 0 for size in sizes_of(index, kind)),
        )
        for kind in kinds_of(index)
    }
    only_streams = _beside_now(index) == "means" and unless_damaged(partial(read_settings, index)) is None
    return Accelerated(files=files, candidates=settings, only_streams=only_streams)


def _refuse(index: PassageIndex, job: AccelerateJob) -> None:
    if job.candidates and index.manifest.decodes:
        raise ValueError(
            f"{index.uri} is compressed, and a candidate index is over the vectors themselves, which would undo the "
            "compression: leave --candidates out, and all passages are scored by their codes"
        )
    if job.candidates and not len(index):
        raise ValueError(f"{index.uri} holds no passages to make a candidate index of: encode some first")
    if job.beside is not None and "codes" not in kinds_of(index):
        raise ValueError(
            f"{index.uri} has no 8-bit codes, being compressed or without vectors, so --beside says nothing of it: "
            "leave it out"
        )
    if not kinds_of(index):
        raise ValueError(
            f"{index.uri} holds neither vectors nor impacts: there is nothing to make codes or postings of"
        )


def _calibrate(index: PassageIndex, job: AccelerateJob) -> CandidateSettings:
    """Choose how many candidates reach the recall; all passages where the exact scan is no slower."""
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


def _beside_now(index: PassageIndex) -> Beside:
    """Return the contents of the codes of all versions: means alone where some fragment has these."""
    names = [name for name in folders_in(index.uri, CODES.name) if not name.startswith(".")]
    codes = [DerivedFolder(index.uri, f"{CODES.name}/{name}") for name in names]
    headers = for_all(index.uri, codes, DerivedFolder.header)
    there = {FragmentCodes.beside(header) for header in headers if header is not None}
    return "means" if "means" in there else "vectors"


def _remove_other_codes(index: PassageIndex, beside: Beside) -> None:
    """Remove the codes that hold more than they are to, or less."""
    folders = [CODES.folder_of(index, fragment) for fragment in index.fragments()]
    for folder, header in zip(folders, for_all(index.uri, folders, DerivedFolder.header), strict=True):
        if header is not None and FragmentCodes.beside(header) != beside:
            folder.remove()


def kinds_of(index: PassageIndex) -> tuple[Kind, ...]:
    """Return what the fragments of an index version are to have."""
    kinds: list[Kind] = []
    if index.manifest.hidden_size is not None:
        # Codes have the decoded vectors beside them, which would undo the compression.
        kinds.append("packed" if index.manifest.decodes else "codes")
    if may_have_postings(index):
        kinds.append("postings")
    return tuple(kinds)


def missing_files(index: PassageIndex) -> list[Missing]:
    """Return the fragments that lack some, in table order."""
    without = {kind: {f.fragment_id for f in lacking(index, FILE_KINDS[kind])} for kind in kinds_of(index)}
    return [
        Missing(fragment.fragment_id, own, fragment.count_rows())
        for fragment in index.fragments()
        if (own := tuple(kind for kind, numbers in without.items() if fragment.fragment_id in numbers))
    ]


def sizes_of(index: PassageIndex, kind: Kind) -> list[int | None]:
    """Return the bytes of each fragment's files of a kind, in table order; None for one that has none."""
    folders = [FILE_KINDS[kind].folder_of(index, fragment) for fragment in index.fragments()]
    return for_all(index.uri, folders, DerivedFolder.size)


def remove_old(index: PassageIndex) -> None:
    """Remove the files that no kept version of the table uses, and what killed jobs left half-made."""
    now = _in_use([index])
    found = [(kind, name) for kind in FILE_KINDS for name in folders_in(index.uri, kind) if name not in now[kind]]
    if not found:
        # Opening every version would be for nothing.
        return
    used = _in_use(index.versions())
    for kind, name in found:
        folder = DerivedFolder(index.uri, f"{kind}/{name}")
        if _is_abandoned(folder) if name.startswith(".") else name not in used[kind]:
            folder.remove()


def _in_use(versions: Iterable[PassageIndex]) -> dict[Kind, set[str]]:
    """Return the names of the folders that some versions are searched by."""
    names: dict[Kind, set[str]] = {kind: set() for kind in FILE_KINDS}
    for version in versions:
        keys = {fragment_key(fragment) for fragment in version.fragments()}
        for kind in kinds_of(version):
            names[kind] |= keys
    return names


def _is_abandoned(temporary: DerivedFolder) -> bool:
    # A running job's unfinished files look the same. On an object store there are none.
    return temporary.is_local and time.time() - temporary.path.stat().st_mtime > _ABANDONED_SECONDS
