"""Dense search: one interface over exact scans and candidates. Every returned score is exact fp32 MaxSim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.search.dense.candidates import CandidateSearch, n_candidates_for
from diffretriever.search.dense.coded import CodedPassages, CodedScan
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.compressed import CompressedScan, open_packed
from diffretriever.search.dense.resident import resident_codes
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan, uses_authors_score

if TYPE_CHECKING:
    import torch

    from diffretriever.index.table import PassageIndex
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search.encoded import EncodedSearch


def open_dense(index: PassageIndex, options: SearchOptions, device: torch.device) -> EncodedSearch:
    """Return the fastest search that the index is ready for: candidates, the codes of all passages, or a stream.

    Raises:
        ValueError: the index has no vectors, or no candidate index for the number of candidates in the options.
    """
    stream = StreamingScan(index, options, device)
    if uses_authors_score(options):
        return stream
    segments, uncoded = open_segments(index)
    if segments and (n_candidates := n_candidates_for(index, options)) is not None:
        candidate_index = CandidateIndex.open(segments)
        sketched = {id(segment) for segment in candidate_index.passages.segments}
        if sketched:
            unknown = [segment.fragment for segment in segments if id(segment) not in sketched]
            return CandidateSearch(candidate_index, uncoded + unknown, stream, n_candidates)
    scanned = [segment for segment in segments if segment.codes.slots is not None]
    if scanned:
        uncoded += [segment.fragment for segment in segments if segment.codes.slots is None]
        resident = resident_codes(scanned, device, options.memory_mb)
        return CodedScan(CodedPassages(scanned), uncoded, stream, options, resident)
    return CompressedScan(index, stream, *open_packed(index)) if index.manifest.codec else stream
