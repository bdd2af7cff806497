"""Search through a candidate index: something fast names passages, and only those are scored, exactly.

A candidate index never scores what is returned: its passages go through the 8-bit codes, and those that can be among
the best k of them through their stored vectors. Fragments that it does not know are scanned whole and merged, so new
passages are neither favoured nor hidden.

How many candidates a recall takes is measured on the index's own passages. The queries are the beginnings of sampled
passages (their titles, where they have any), encoded as queries. Real questions can be harder: what is kept is the
recall on this sample and no promise for others.

Legend: S sampled queries, W exact passages of queries, C candidates of a query.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from diffretriever.artefacts.artefact import DamagedError, unless_damaged
from diffretriever.encoders.base import Encoder
from diffretriever.files import filesystem_of, json_digest, write_text
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations, refuse_queries
from diffretriever.schemas.accelerate import CandidateSettings, ProposerName
from diffretriever.schemas.mode import Way
from diffretriever.schemas.search import SearchOptions
from diffretriever.scoring.hits import Hits, TopK
from diffretriever.scoring.maxsim import CodedQueries
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.codes import CODES, open_segments
from diffretriever.search.dense.mean import MeanProposer
from diffretriever.search.dense.plaid import PlaidProposer
from diffretriever.search.dense.proposer import Proposer
from diffretriever.search.dense.sketch import SketchProposer
from diffretriever.search.dense.stream import StreamingScan, asks_for_the_authors_score

PROPOSERS: Mapping[str, type[Proposer]] = {"mean": MeanProposer, "sketch": SketchProposer, "plaid": PlaidProposer}
"""Candidate indexes by name. Adding one is a file here, a name in `schemas.accelerate` and an entry."""

AUTO: tuple[ProposerName, ...] = ("mean", "sketch", "plaid")
"""What a calibration chooses from where none is named: those that are made in seconds."""

_DIGEST = "digest"
_GROWN = 1.5
"""Times as many passages."""
_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645
"""Standard deviations below the mean at which a one-sided 95 % interval ends."""
_TIMED = 20
"""Queries whose median time counts."""
_ENOUGH_SECONDS = 10.0
"""After which no more are timed: a scan of a large table takes minutes for each."""
_LOG = logging.getLogger(__name__)


class CandidateSearch(DenseSearch):
    """Scores the passages that a proposer names, `n_candidates` for each query."""

    way: ClassVar[Way] = "candidates"
    is_exact: ClassVar[bool] = False

    def __init__(self, proposer: Proposer, unknown: list[Any], stream: StreamingScan, n_candidates: int) -> None:
        """Search through an open candidate index.

        Args:
            proposer: names the candidates.
            unknown: the fragments that it does not know.
            stream: scans those.
            n_candidates: passages to score for each query; more where more are asked for.
        """
        self.proposer = proposer
        self.n_candidates: int = n_candidates
        self._unknown = unknown
        self._stream = stream

    @classmethod
    def open(cls, index: PassageIndex, options: SearchOptions, device: torch.device) -> Self | None:
        """Open the candidate index that was calibrated; None where all passages are to be scored.

        An index made before may be calibrated with a candidate index that is there no longer: a warning says what to
        run.
        """
        if options.search_budget == "exact" or asks_for_the_authors_score(options):
            return None
        settings = unless_damaged(lambda: read_settings(index))
        segments, uncoded = open_segments(index)
        if not segments or (settings is None and options.search_budget == "auto"):
            return None
        if settings is None:
            raise ValueError(
                f"a search budget needs a candidate index: `python jobs/accelerate_index.py --index {index.uri} "
                "--candidates mean`, or leave --search-budget out"
            )
        if settings.proposer not in PROPOSERS:
            warnings.warn(
                f"{index.uri}: {settings.proposer} is no longer a candidate index, so all passages are scored: run "
                f"`python jobs/accelerate_index.py --index {index.uri} --candidates mean` to have candidates again",
                stacklevel=3,
            )
            return None
        n_candidates = settings.search_budget if options.search_budget == "auto" else options.search_budget
        if n_candidates >= len(index):
            return None
        proposer = PROPOSERS[settings.proposer].open(index, segments)
        known = {id(segment) for segment in proposer.passages.segments}
        if not known:
            # A candidate index of other fragments than these has nothing to name.
            return None
        unknown = [segment.fragment for segment in segments if id(segment) not in known]
        return cls(proposer, uncoded + unknown, StreamingScan.open(index, options, device), n_candidates)

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages among the candidates and the fragments not known to the proposer."""
        refuse_queries(queries)
        self.proposer.passages.refuse_not_finite(self._stream.uri)
        best = TopK(len(queries), k, self._stream.order.passages)
        for fragment in self._unknown:
            self._stream.add_fragment(fragment, queries, best)
        coded = CodedQueries(queries.vectors_MH, queries.offsets)
        passages = self.proposer.passages
        proposals = self.proposer.propose(queries, max(k, self.n_candidates))
        chosen = [passages.best_of(coded, query, np.sort(numbers_C), k) for query, numbers_C in enumerate(proposals)]
        passages.rescore(queries, chosen, best)
        return best.results()

    def among(self, n_candidates: int) -> DenseSearch:
        """See `DenseSearch`; the candidate index is the same."""
        if n_candidates >= self.n_candidates:
            return self
        return CandidateSearch(self.proposer, self._unknown, self._stream, n_candidates)


def calibrated(index: PassageIndex) -> tuple[type[Proposer], CandidateSettings] | None:
    """Return the candidate index that was calibrated, and to what; None where none was, or one that is gone."""
    settings = unless_damaged(lambda: read_settings(index))
    if settings is None or settings.proposer not in PROPOSERS:
        return None
    return PROPOSERS[settings.proposer], settings


def complete_candidates(index: PassageIndex) -> None:
    """Make what the candidate index that was calibrated lacks, of fragments that came since: compaction's, new ones.

    Nothing happens where it cannot be made of what there is beside the table now. A line in the log says where the
    index has grown so much that the recall it was calibrated to may be missed.
    """
    found = calibrated(index)
    if found is None:
        return
    proposer, settings = found
    if len(index) > _GROWN * settings.passages and settings.search_budget < settings.passages:
        _LOG.warning(
            "%s: its candidates were calibrated to recall %g when it held %s passages, now it holds %s: run "
            "`python jobs/accelerate_index.py --index %s --candidates %s` to calibrate them anew",
            *(index.uri, settings.target, f"{settings.passages:,}", f"{len(index):,}", index.uri, settings.proposer),
        )
    if proposer.kept is None:
        return
    artefacts = [CODES.artefact(index, fragment) for fragment in index.fragments()]
    if all(artefact.has_added(proposer.kept) for artefact in artefacts):
        # To open codes that lie on an object store would fetch them.
        return
    segments, _ = open_segments(index)
    if not proposer.needs_slots or all(segment.codes.slots is not None for segment in segments):
        proposer.build(index, segments)


def read_settings(index: PassageIndex) -> CandidateSettings | None:
    """Return what the candidate index was calibrated to; None where nothing was calibrated.

    Raises:
        DamagedError: the file is not what was written.
    """
    place = settings_place(index)
    files, path = filesystem_of(place)
    try:
        with files.open_input_stream(path) as stream:
            values = json.loads(stream.read())
        said = values.pop(_DIGEST, None)
        settings = CandidateSettings.model_validate(values)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedError(f"{place} is damaged") from error
    # Settings written before have none.
    if said not in (None, _digest_of(settings)):
        raise DamagedError(f"{place} is damaged")
    return settings


def write_settings(index: PassageIndex, settings: CandidateSettings) -> None:
    """Write the outcome of a calibration, and its digest, into the folder of the codes."""
    values = {**settings.model_dump(mode="json"), _DIGEST: _digest_of(settings)}
    write_text(settings_place(index), json.dumps(values, indent=2))


def _digest_of(settings: CandidateSettings) -> str:
    return json_digest(settings.model_dump(mode="json"))


def settings_place(index: PassageIndex) -> str:
    """Return where the settings of an index lie: a path or a URI."""
    return f"{index.uri.rstrip('/')}/codes/candidates.json"


def sample_queries(index: PassageIndex, encoder: Encoder, size: int, seed: int = 0) -> Representations:
    """Return up to `size` queries made from passages drawn at random.

    Args:
        index: whose passages are drawn.
        encoder: of the queries.
        size: how many, if there are so many.
        seed: of the drawing.
    """
    rows = np.random.default_rng(seed).choice(len(index), min(size, len(index)), replace=False)
    table = index.take(np.sort(rows), ["title", "text"])
    pairs = zip(table.column("title").to_pylist(), table.column("text").to_pylist(), strict=True)
    return encoder.encode_queries([" ".join((title or text).split()[:_QUERY_WORDS]) for title, text in pairs])


def counts_to_try(k: int, passages: int) -> list[int]:
    """Return numbers of candidates, ascending, the last of them all passages."""
    # Codes of a quarter of the passages, here and there, take as long to read as all of them in a row.
    tried = np.geomspace(k, max(k, passages // 4), 60).astype(int)
    return np.unique([*tried.clip(1, passages), passages]).tolist()


def choose_count(
    proposer: Proposer, queries: Representations, exact: Hits, counts: Sequence[int], target: float
) -> tuple[int, float]:
    """Return the smallest number of candidates whose recall surely reaches the target, and its recall on the sample.

    Surely: the lower end of a one-sided 95 % interval of the mean. Few candidates need not be the first of more, since
    some proposers look the further the more they are asked for: every number is tried by itself.

    Args:
        proposer: what names candidates.
        queries: S queries.
        exact: their exact passages.
        counts: numbers of candidates, ascending, the last of them all passages.
        target: mean recall wanted.
    """
    wanted = wanted_numbers(proposer, exact)
    low, high, measured = 0, len(counts) - 1, 1.0
    while low < high:
        middle = (low + high) // 2
        shares_S = recall_at(proposer, queries, wanted, counts[middle])
        if shares_S.mean() - _ONE_SIDED_95 * shares_S.std() / np.sqrt(len(shares_S)) >= target:
            high, measured = middle, float(shares_S.mean())
        else:
            low = middle + 1
    return counts[low], measured


def wanted_numbers(proposer: Proposer, exact: Hits) -> list[np.ndarray]:
    """Return each query's passages as numbers into the proposer's, negative for those that it does not know."""
    return np.split(proposer.passages.places_of(exact.numbers_F), exact.offsets[1:-1])


def recall_at(
    proposer: Proposer, queries: Representations, wanted: Sequence[np.ndarray], n_candidates: int
) -> np.ndarray:
    """Return float [S]: the share of each query's wanted passages that so many candidates hold.

    Passages that the proposer does not know count as held, since they are scanned whole.

    Args:
        proposer: what names candidates.
        queries: S queries.
        wanted: for each, int64 [W] numbers, as `wanted_numbers` returns them.
        n_candidates: for each query.
    """
    proposals = proposer.propose(queries, n_candidates)
    held = [np.isin(own_W, own_C) | (own_W < 0) for own_W, own_C in zip(wanted, proposals, strict=True)]
    return np.array([own_W.sum() / max(1, len(own_W)) for own_W in held])


def milliseconds(search: DenseSearch, queries: Representations, k: int) -> float:
    """Return the median time of a query alone, over the first few."""
    times: list[float] = []
    for query in range(min(len(queries), _TIMED)):
        if sum(times) > _ENOUGH_SECONDS * 1e3:
            break
        start = time.perf_counter()
        search.search(queries.take(np.array([query])), k)
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))
