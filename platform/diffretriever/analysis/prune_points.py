"""The points of a pruning curve and the tests between them.

Legend: N vectors of all passages, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from diffretriever.analysis.prune_search import kept_offsets, search_kept
from diffretriever.analysis.prune_source import PruneSource
from diffretriever.budgets.pruning import Removals, removals
from diffretriever.evaluation.measures import evaluate
from diffretriever.search.cut import kept_hits, searched_depth
from diffretriever.statistics.intervals import bootstrap_interval
from diffretriever.statistics.significance import holm, t_test_p
from schemas.prune import PrunePoint, PruneTest

_DEPTH = 100
_BYTES_A_NUMBER = 2

_Rule: TypeAlias = Literal["all", "same number", "threshold", "first slots", "encoded"]
_PRUNING: tuple[_Rule, ...] = ("same number", "threshold")


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """One way to keep vectors: how many, and float64 [Q] values of the queries."""

    vectors: int
    values_Q: np.ndarray


def curve_points(source: PruneSource, keep: tuple[int, ...], measure: str) -> Iterator[PrunePoint]:
    """Yield the points: nothing pruned, then each rule by rising k.

    Args:
        source: queries and passages.
        keep: the k, ascending, each below the most slots of a passage.
        measure: as ir_measures writes it.
    """
    measured = _measured(source, keep, measure)
    tests = {rule: _tests(measured, rule) for rule in ("all", "first slots", "encoded")}
    for (rule, k), found in measured.items():
        yield PrunePoint(
            rule=rule,
            keep=k,
            average=found.vectors / len(source.passage_ids),
            bytes=found.vectors * source.vectors_NH.shape[1] * _BYTES_A_NUMBER,
            mean=float(found.values_Q.mean()),
            interval=bootstrap_interval(found.values_Q),
            against_all=tests["all"].get((rule, k)),
            against_first=tests["first slots"].get((rule, k)),
            against_encoded=tests["encoded"].get((rule, k)),
        )


def _measured(source: PruneSource, keep: tuple[int, ...], measure: str) -> dict[tuple[_Rule, int], _Measured]:
    found = {}
    for key, kept_N in _ways(source, keep):
        vectors_NH = source.vectors_NH[kept_N].astype(np.float32)
        found[key] = _Measured(
            int(kept_N.sum()), _values(source, vectors_NH, kept_offsets(source.offsets, kept_N), measure)
        )
    for k in keep:
        if k in source.encoded:
            values, vectors = source.encoded[k]
            found["encoded", k] = _Measured(vectors, np.array([values[query] for query in source.qrels]))
    return found


def _ways(source: PruneSource, keep: tuple[int, ...]) -> Iterator[tuple[tuple[_Rule, int], np.ndarray]]:
    """Yield which vectors stay, bool [N], by rule and k."""
    order = removals(source.vectors_NH, source.offsets)
    yield ("all", int(np.diff(source.offsets).max())), np.ones(len(source.vectors_NH), dtype=bool)
    for rule in _PRUNING:
        for k in keep:
            yield (rule, k), _kept(rule, order, k)
    places_N = _places(source)
    for k in keep:
        yield ("first slots", k), places_N < k


def kept_by(rule: Literal["same number", "threshold", "first slots"], source: PruneSource, k: int) -> np.ndarray:
    """Return which vectors stay, bool [N], when passages keep k slots, each or on average."""
    if rule == "first slots":
        return _places(source) < k
    return _kept(rule, removals(source.vectors_NH, source.offsets), k)


def _places(source: PruneSource) -> np.ndarray:
    """Return the place of each vector in its passage, int64 [N]."""
    return np.arange(len(source.vectors_NH)) - np.repeat(source.offsets[:-1], np.diff(source.offsets))


def _kept(rule: _Rule, order: Removals, k: int) -> np.ndarray:
    if rule == "same number":
        return order.keep_each(k)
    # As many vectors as when every passage keeps k: passages that never had k count with what they have.
    return order.keep_total(int(np.minimum(np.diff(order.offsets), k).sum()))


def _values(source: PruneSource, vectors_NH: np.ndarray, offsets: np.ndarray, measure: str) -> np.ndarray:
    depth = searched_depth(_DEPTH, exclude_self=source.exclude_self)
    hits = search_kept(source.queries, vectors_NH, offsets, source.passage_ids, depth)
    run = {
        query: dict(kept_hits(query, found, _DEPTH, exclude_self=source.exclude_self))
        for query, found in zip(source.query_ids, hits, strict=True)
    }
    values = evaluate(run, source.qrels, [measure]).per_query[measure]
    return np.array([values[query] for query in source.qrels])


def _tests(measured: Mapping[tuple[_Rule, int], _Measured], other: _Rule) -> dict[tuple[_Rule, int], PruneTest]:
    """Return what pruned points differ from those of another rule with the same k, or from the one of `all`."""
    whole = next(key for key in measured if key[0] == "all")
    compared = _PRUNING if other != "all" else (*_PRUNING, "first slots", "encoded")
    pairs = {
        (rule, k): measured[rule, k].values_Q - measured[whole if other == "all" else (other, k)].values_Q
        for rule, k in measured
        if rule in compared and (other == "all" or (other, k) in measured)
    }
    corrected = holm([t_test_p(differences_Q) for differences_Q in pairs.values()])
    return {
        key: PruneTest(difference=float(differences_Q.mean()), t_test=p)
        for (key, differences_Q), p in zip(pairs.items(), corrected, strict=True)
    }
