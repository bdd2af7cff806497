"""Search through a candidate index: something fast names passages, and only those are scored, exactly.

A candidate index never scores what is returned: its passages go through the 8-bit codes, and those that can be among
the best k of them through their stored vectors. Fragments that it does not know are scanned whole and merged, so new
passages are neither favoured nor hidden.

Legend: C candidates of a query.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from diffretriever.artefacts.artefact import DamagedError, unless_damaged
from diffretriever.encoders.representations import Representations, refuse_queries
from diffretriever.files import filesystem_of, json_digest, write_text
from diffretriever.index.table import PassageIndex
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
