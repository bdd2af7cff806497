"""How many candidates a recall takes, measured on the index's own passages.

The queries are the beginnings of sampled passages (their titles, where they have any), encoded as queries. Real
questions can be harder: what is kept is the recall on this sample and no promise for others.

Legend: S sampled queries, N budgets tried, W exact passages of all queries, C candidates of one.
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
from schemas.candidates import CandidateSettings

_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645


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


def recall_by_budget(proposer: Proposer, queries: Representations, exact: Hits, budgets: Sequence[int]) -> np.ndarray:
    """Return float [N, S]: the share of each query's exact passages that the first candidates hold.

    Passages that the proposer does not know count as held, since they are scanned whole, and so do all passages
    where the budget is as large as their number.
    """
    wanted_W = proposer.passages.numbers_of([passage for hits in exact for passage, _ in hits])
    wanted = np.split(wanted_W, np.cumsum([len(hits) for hits in exact])[:-1])
    asked = np.array(budgets)
    all_of_them = asked >= len(proposer.passages)
    shares_NS = np.ones((len(budgets), len(queries)))
    most = int(asked[~all_of_them].max(initial=1))
    for query, proposal_C in enumerate(proposer.propose(queries, most)):
        held = np.concatenate([[np.sum(wanted[query] < 0)], np.isin(proposal_C, wanted[query])])
        reached = np.cumsum(held) / max(1, len(wanted[query]))
        shares_NS[~all_of_them, query] = reached[np.minimum(asked[~all_of_them], len(proposal_C))]
    return shares_NS


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
