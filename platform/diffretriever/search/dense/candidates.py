"""Two-stage search: a candidate index (`sketch`) retrieves passages, and only those are scored exactly.

Candidates are pruned by 8-bit codes and rescored by their stored vectors. Fragments missing in the candidate index are
scanned fully and merged, so new passages are treated equally.

Calibration measures recall with titles, or beginnings, of sampled passages as queries. Real queries can be harder, so
the recall on this sample is no guarantee.

Legend: S sampled queries, W exact passages of queries, C candidates of a query.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from diffretriever.core.files import json_digest, read_bytes, write_text
from diffretriever.encoders.base import Encoder
from diffretriever.index.derived import DamagedError, unless_damaged
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import CandidateSettings
from diffretriever.schemas.mode import Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.codes import CODES, open_segments
from diffretriever.search.dense.sketch import SKETCHES, CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.hits import Hits, TopK
from diffretriever.vectors.maxsim import CodedQueries
from diffretriever.vectors.representations import Representations

_DIGEST = "digest"
_GROWN = 1.5
"""Times as many passages."""
_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645
"""Standard deviations below the mean at which a one-sided 95 % interval ends."""
_TIMED = 20
"""Queries whose median time counts."""
_ENOUGH_SECONDS = 10.0
"""Time limit of the measurement: scanning a large table takes minutes per query."""
_LOG = logging.getLogger(__name__)


class CandidateSearch(EncodedSearch):
    """Scores `n_candidates` passages per query, retrieved by a candidate index."""

    way: ClassVar[Way] = "candidates"

    def __init__(
        self, candidate_index: CandidateIndex, unknown: list[Any], stream: StreamingScan, n_candidates: int
    ) -> None:
        """Search an open candidate index; `stream` scans the fragments `unknown` to it.

        Each query scores max(k, n_candidates) passages.
        """
        self.candidate_index = candidate_index
        self.n_candidates: int = n_candidates
        self._unknown = unknown
        self._stream = stream

    def search(self, queries: Representations, k: int) -> Hits:
        """Return the k best passages of each query among the candidates and the unknown fragments."""
        best = TopK(len(queries), k, self._stream.order.passages)
        for fragment in self._unknown:
            self._stream.add_fragment(fragment, queries, best)
        coded = CodedQueries(queries.vectors_MH, queries.offsets)
        passages = self.candidate_index.passages
        proposals = self.candidate_index.propose(queries, max(k, self.n_candidates))
        chosen = [passages.best_of(coded, query, np.sort(numbers_C), k) for query, numbers_C in enumerate(proposals)]
        passages.rescore(queries, chosen, best)
        return best.results()

    def with_candidates(self, n_candidates: int) -> Self:
        """See `EncodedSearch`; the candidate index is the same."""
        if n_candidates >= self.n_candidates:
            return self
        return type(self)(self.candidate_index, self._unknown, self._stream, n_candidates)


def n_candidates_for(index: PassageIndex, options: SearchOptions) -> int | None:
    """Return the number of candidates per query; None if the search scores all passages.

    Raises:
        ValueError: the options set a number of candidates, but there is no candidate index.
    """
    if options.search_budget == "exact":
        return None
    settings = unless_damaged(lambda: read_settings(index))
    if settings is None:
        if options.search_budget == "auto":
            return None
        raise ValueError(
            f"a search budget needs a candidate index: run `python jobs/accelerate_index.py --index {index.uri} "
            "--candidates`, or leave out --search-budget"
        )
    n_candidates = settings.search_budget if options.search_budget == "auto" else options.search_budget
    return None if n_candidates >= len(index) else n_candidates


def complete_candidates(index: PassageIndex) -> None:
    """Sketch the fragments that are newer than the calibration of the candidate index.

    Logs a warning if the index has grown so much that the recall may be below the target.
    """
    settings = unless_damaged(lambda: read_settings(index))
    if settings is None:
        return
    if len(index) > _GROWN * settings.passages and settings.search_budget < settings.passages:
        _LOG.warning(
            "%s: candidates were calibrated to recall %g with %s passages, and now there are %s: run "
            "`python jobs/accelerate_index.py --index %s --candidates` to calibrate again",
            *(index.uri, settings.target, f"{settings.passages:,}", f"{len(index):,}", index.uri),
        )
    folders = [CODES.folder_of(index, fragment) for fragment in index.fragments()]
    if all(unless_damaged(folder.below(SKETCHES).size) is not None for folder in folders):
        # Opening codes on an object store would fetch them.
        return
    CandidateIndex.build(index, open_segments(index)[0])


def read_settings(index: PassageIndex) -> CandidateSettings | None:
    """Return the calibration of the candidate index; None without one.

    Raises:
        DamagedError: the file is damaged.
    """
    location = settings_file(index)
    try:
        data = read_bytes(location)
    except FileNotFoundError:
        return None
    try:
        values = json.loads(data)
        digest = values.pop(_DIGEST, None)
        settings = CandidateSettings.model_validate(values)
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedError(f"{location} is damaged") from error
    if digest != _digest_of(settings):
        raise DamagedError(f"{location} is damaged")
    return settings


def write_settings(index: PassageIndex, settings: CandidateSettings) -> None:
    """Write a calibration and its digest to the folder of the codes."""
    values = {**settings.model_dump(mode="json"), _DIGEST: _digest_of(settings)}
    write_text(settings_file(index), json.dumps(values, indent=2))


def _digest_of(settings: CandidateSettings) -> str:
    return json_digest(settings.model_dump(mode="json"))


def settings_file(index: PassageIndex) -> str:
    """Return the path or URI of the calibration file."""
    return f"{index.uri.rstrip('/')}/codes/candidates.json"


def sample_queries(index: PassageIndex, encoder: Encoder, size: int) -> Representations:
    """Return up to `size` queries made from the beginnings of random passages."""
    rows = np.random.default_rng(0).choice(len(index), min(size, len(index)), replace=False)
    table = index.take(np.sort(rows), ["title", "text"])
    pairs = zip(table.column("title").to_pylist(), table.column("text").to_pylist(), strict=True)
    return encoder.encode_queries([" ".join((title or text).split()[:_QUERY_WORDS]) for title, text in pairs])


def counts_to_try(k: int, passages: int) -> list[int]:
    """Return ascending numbers of candidates; the last is all passages."""
    # Reading a random quarter of the codes takes as long as reading all sequentially.
    tried = np.geomspace(k, max(k, passages // 4), 60).astype(int)
    return np.unique([*tried.clip(1, passages), passages]).tolist()


def choose_count(
    candidate_index: CandidateIndex, queries: Representations, exact: Hits, counts: Sequence[int], target: float
) -> tuple[int, float]:
    """Return the smallest number of candidates that reaches the target recall, and its recall on the sample.

    The lower end of a one-sided 95 % interval of the mean must reach the target. `counts` ascend and end with all
    passages. Passages missing in the candidate index count as retrieved, since they are scanned.
    """
    passages = candidate_index.passages
    live = np.flatnonzero(passages.live_P)
    positions = np.full(len(exact.passages), -1)
    positions[passages.numbers_P[live]] = live
    exact_hits = np.split(positions[exact.numbers_F], exact.offsets[1:-1])
    low, high, measured = 0, len(counts) - 1, 1.0
    while low < high:
        middle = (low + high) // 2
        proposals = candidate_index.propose(queries, counts[middle])
        pairs = zip(exact_hits, proposals, strict=True)
        retrieved = [np.isin(exact_W, chosen_C) | (exact_W < 0) for exact_W, chosen_C in pairs]
        shares_S = np.array([retrieved_W.sum() / max(1, len(retrieved_W)) for retrieved_W in retrieved])
        if shares_S.mean() - _ONE_SIDED_95 * shares_S.std() / np.sqrt(len(shares_S)) >= target:
            high, measured = middle, float(shares_S.mean())
        else:
            low = middle + 1
    return counts[low], measured


def milliseconds(search: EncodedSearch, queries: Representations, k: int) -> float:
    """Return the median latency of the first queries, searched one at a time."""
    times: list[float] = []
    for query in range(min(len(queries), _TIMED)):
        if sum(times) > _ENOUGH_SECONDS * 1e3:
            break
        start = time.perf_counter()
        search.search(queries.take(np.array([query])), k)
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))
