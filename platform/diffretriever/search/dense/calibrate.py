"""How many candidates a recall takes, measured on the index's own passages.

The queries are the beginnings of sampled passages (their titles, where they have any), encoded as queries. Real
questions can be harder: what is kept is the recall on this sample and no promise for others.

Legend: S sampled queries, N budgets tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.files import write_text
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.topk import Hits
from diffretriever.search.dense.candidates import Proposer
from diffretriever.search.dense.segments import Segment
from schemas.candidates import CandidateSettings

_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645


def sample_queries(index: PassageIndex, encoder: Encoder, size: int, seed: int = 0) -> Representations:
    """Return up to `size` queries made from passages drawn at random."""
    rows = np.random.default_rng(seed).choice(len(index), min(size, len(index)), replace=False)
    table = index.take(np.sort(rows), ["title", "text"])
    pairs = zip(table.column("title").to_pylist(), table.column("text").to_pylist(), strict=True)
    return encoder.encode_queries([" ".join((title or text).split()[:_QUERY_WORDS]) for title, text in pairs])


def recall_by_budget(
    index: PassageIndex,
    segments: Sequence[Segment],
    proposer: Proposer,
    queries: Representations,
    exact: Hits,
    budgets: Sequence[int],
) -> np.ndarray:
    """Return float [N, S]: the share of each query's exact passages that the first candidates hold."""
    places = {passage: place for place, passage in enumerate(_ids(index))}
    positions_P = np.concatenate([s.positions_P for s in segments])
    shares = np.zeros((len(budgets), len(queries)))
    for query, (hits, numbers) in enumerate(zip(exact, proposer.propose(queries, max(budgets)), strict=True)):
        wanted = np.array([places[passage] for passage, _ in hits])
        found = np.isin(positions_P[numbers], wanted)
        reached = np.concatenate([[0], np.cumsum(found)])
        shares[:, query] = reached[np.minimum(budgets, len(numbers))] / max(1, len(wanted))
    return shares


def choose_budget(shares_NS: np.ndarray, budgets: Sequence[int], target: float) -> tuple[int, float]:
    """Return the smallest budget whose recall surely reaches the target, and its recall on the sample.

    Surely: the lower end of a one-sided 95 % interval of the mean. The largest budget stands in where none does.
    """
    means_N = shares_NS.mean(axis=1)
    errors_N = shares_NS.std(axis=1) / np.sqrt(shares_NS.shape[1])
    enough = np.flatnonzero(means_N - _ONE_SIDED_95 * errors_N >= target)
    chosen = int(enough[0]) if len(enough) else len(budgets) - 1
    return budgets[chosen], float(means_N[chosen])


def settings_file(index: PassageIndex) -> Path:
    """Return where the settings of an index lie."""
    return Path(index.uri) / "codes" / "candidates.json"


def read_settings(index: PassageIndex) -> CandidateSettings | None:
    """Return the settings kept beside the codes; None where nothing was calibrated."""
    try:
        return CandidateSettings.model_validate_json(settings_file(index).read_text("utf-8"))
    except FileNotFoundError:
        return None


def write_settings(index: PassageIndex, settings: CandidateSettings) -> None:
    """Keep the settings beside the codes."""
    write_text(settings_file(index), settings.model_dump_json(indent=2) + "\n")


def _ids(index: PassageIndex) -> list[str]:
    return [i for batch in index.batches(["id"], 65536) for i in batch.column("id").to_pylist()]
