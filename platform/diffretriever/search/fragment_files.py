"""The files that searches keep beside each fragment: which of them are missing, making those, forgetting old ones."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from diffretriever.files import is_local
from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.search.dense import segments as dense
from diffretriever.search.sparse import segments as sparse
from schemas.base import Model

Kind: TypeAlias = Literal["codes", "postings"]
"""What there is, by the name of its folder."""
_ABANDONED_SECONDS = 24 * 3600


class Missing(NamedTuple):
    """A fragment that lacks files."""

    fragment: int
    """Lance's number of it."""
    kinds: tuple[Kind, ...]
    passages: int


Make: TypeAlias = Callable[[PassageIndex, Sequence[Missing]], None]
"""Makes what is missing; returns when all of it is there."""


class Kept(Model):
    """The files of one kind beside an index."""

    made: int
    """Fragments that got theirs just now."""
    bytes: int
    """Size of all of them."""


def kinds_of(index: PassageIndex) -> tuple[Kind, ...]:
    """Return what the fragments of an index can have; nothing unless it lies on a local disk."""
    if not is_local(index.uri):
        return ()
    vectors: tuple[Kind, ...] = () if index.manifest.hidden_size is None else ("codes",)
    return (*vectors, "postings") if sparse.may_have_postings(index) else vectors


def missing_files(index: PassageIndex) -> list[Missing]:
    """Return the fragments that lack some, in table order."""
    kinds = kinds_of(index)
    uncoded = dense.open_segments(index)[1] if "codes" in kinds else []
    uninverted = sparse.open_segments(index)[1] if "postings" in kinds else []
    lacking: dict[Kind, set[int]] = {"codes": _numbers(uncoded), "postings": _numbers(uninverted)}
    return [
        Missing(fragment.fragment_id, own, fragment.count_rows())
        for fragment in index.fragments()
        if (own := tuple(kind for kind in kinds if fragment.fragment_id in lacking[kind]))
    ]


def make_missing(index: PassageIndex, missing: Sequence[Missing]) -> None:
    """Make files of one fragment after the other. Killed, it leaves whole files only, and goes on when run again."""
    for each in missing:
        fragment = index.dataset.get_fragment(each.fragment)
        if "codes" in each.kinds:
            dense.build_fragment_codes(index, fragment)
        if "postings" in each.kinds:
            sparse.build_fragment_postings(index, fragment)


def folder_of(index: PassageIndex, kind: Kind, fragment: Any) -> Path:
    """Return where a fragment's files of one kind lie."""
    folder = dense.codes_folder if kind == "codes" else sparse.postings_folder
    return folder(index, fragment)


def bytes_in(folder: Path) -> int:
    """Return the size of the files in a folder and those below it; 0 where there is no folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def forget_gone(index: PassageIndex) -> None:
    """Remove the files of fragments that no kept version of the table has, and what killed jobs left half-made."""
    keys = {fragment_key(f) for version in index.versions() for f in version.fragments()}
    for kind in kinds_of(index):
        for folder in (Path(index.uri) / kind).glob("*/"):
            if _is_abandoned(folder) if folder.name.startswith(".") else folder.name not in keys:
                shutil.rmtree(folder)


def _is_abandoned(temporary: Path) -> bool:
    # A running job's unfinished files look the same.
    return time.time() - temporary.stat().st_mtime > _ABANDONED_SECONDS


def _numbers(fragments: list[Any]) -> set[int]:
    return {fragment.fragment_id for fragment in fragments}
