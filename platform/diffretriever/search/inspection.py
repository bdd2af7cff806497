"""All that can be told of an index: its table, its history, what search keeps beside it, and whether it is sound."""

from __future__ import annotations

from typing import Any

from diffretriever.files import is_local
from diffretriever.index.fragment_codes import FragmentCodes
from diffretriever.index.history import column_bytes, history
from diffretriever.index.table import PassageIndex
from diffretriever.index.verify import verify
from diffretriever.search.dense.calibrate import read_settings
from diffretriever.search.dense.segments import codes_folder
from schemas.inspect import CodesContents, IndexReport


def inspect(index: PassageIndex, *, check: bool) -> IndexReport:
    """Describe an index; with `check` all of it is read and checked."""
    contents = index.contents()
    return IndexReport(
        index=index.uri,
        fingerprint=index.manifest.fingerprint,
        contents=contents,
        columns=column_bytes(index),
        codes=_codes_contents(index) if _may_have_codes(index) else None,
        candidates=read_settings(index),
        versions=history(index),
        verification=verify(index, contents, lambda fragment: _open_codes(index, fragment)) if check else None,
        manifest=index.manifest,
    )


def _may_have_codes(index: PassageIndex) -> bool:
    return is_local(index.uri) and index.manifest.hidden_size is not None


def _open_codes(index: PassageIndex, fragment: Any) -> FragmentCodes | None:
    return FragmentCodes.open(codes_folder(index, fragment)) if _may_have_codes(index) else None


def _codes_contents(index: PassageIndex) -> CodesContents:
    folders = {fragment.fragment_id: codes_folder(index, fragment) for fragment in index.fragments()}
    uncoded = [f for f in index.fragments() if not folders[f.fragment_id].is_dir()]
    coded = [folder for folder in folders.values() if folder.is_dir()]
    return CodesContents(
        coded_fragments=len(coded),
        uncoded_fragments=len(uncoded),
        uncoded_rows=sum(fragment.count_rows() for fragment in uncoded),
        bytes=sum(file.stat().st_size for folder in coded for file in folder.iterdir()),
    )
