"""How many candidates a recall takes, measured on the index's own passages.

The queries are the beginnings of sampled passages (their titles, where they have any), encoded as queries. Real
questions can be harder: what is kept is the recall on this sample and no promise for others.

Legend: S sampled queries, W exact passages of queries, C candidates of one query.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.files import write_text
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.topk import Hits
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.candidates import Proposer
from schemas.accelerate import CandidateSettings

_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645
_TIMED = 20


def sample_queries(index: PassageIndex, encoder: Encoder, size: int, seed: int = 0) -> Representations:
    """Return up to `size` queries made from passages drawn at random."""
    rows = np.random.default_rng(seed).choice(len(index), min(size, len(index)), replace=False)
    table = index.take(np.sort(rows), ["title", "text"])
    pairs = zip(table.column("title").to_pylist(), table.column("text").to_pylist(), strict=True)
    return encoder.encode_queries([" ".join((title or text).split()[:_QUERY_WORDS]) for title, text in pairs])


def budgets_to_try(top_k: int, passages: int) -> list[int]:
    """Return budgets, ascending, the last of them all passages."""
    # Codes of a quarter of the passages, here and there, take as long to read as all of them in a row.
    tried = np.geomspace(top_k, max(top_k, passages // 4), 60).astype(int)
    return np.unique([*tried.clip(1, passages), passages]).tolist()


def choose_budget(
    proposer: Proposer, queries: Representations, exact: Hits, budgets: Sequence[int], target: float
) -> tuple[int, float]:
    """Return the smallest budget whose recall surely reaches the target, and its recall on the sample.

    Surely: the lower end of a one-sided 95 % interval of the mean. A budget's candidates need not be the first of a
    larger one's, since some proposers look the further the more they are asked for: every budget is tried by itself.

    Args:
        proposer: what names candidates.
        queries: S queries.
        exact: their exact passages.
        budgets: ascending, the last of them all passages.
        target: mean recall wanted.
    """
    wanted = wanted_numbers(proposer, exact)
    low, high, measured = 0, len(budgets) - 1, 1.0
    while low < high:
        middle = (low + high) // 2
        shares_S = recall_at(proposer, queries, wanted, budgets[middle])
        if shares_S.mean() - _ONE_SIDED_95 * shares_S.std() / np.sqrt(len(shares_S)) >= target:
            high, measured = middle, float(shares_S.mean())
        else:
            low = middle + 1
    return budgets[low], measured


def wanted_numbers(proposer: Proposer, exact: Hits) -> list[np.ndarray]:
    """Return each query's passages as numbers into the proposer's, negative for those that it does not know."""
    numbers_W = proposer.passages.numbers_of([passage for hits in exact for passage, _ in hits])
    return np.split(numbers_W, np.cumsum([len(hits) for hits in exact])[:-1])


def recall_at(
    proposer: Proposer, queries: Representations, wanted: Sequence[np.ndarray], search_budget: int
) -> np.ndarray:
    """Return float [S]: the share of each query's wanted passages that the candidates of one budget hold.

    Passages that the proposer does not know count as held, since they are scanned whole.
    """
    proposals = proposer.propose(queries, search_budget)
    held = [np.isin(own_W, own_C) | (own_W < 0) for own_W, own_C in zip(wanted, proposals, strict=True)]
    return np.array([own_W.sum() / max(1, len(own_W)) for own_W in held])


def milliseconds(search: DenseSearch, queries: Representations, k: int) -> float:
    """Return the median time of a query alone, over the first few."""
    times: list[float] = []
    for query in range(min(len(queries), _TIMED)):
        start = time.perf_counter()
        search.search(queries.take(np.array([query])), k)
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))


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
