"""Fewer slots for passages that need fewer (the paper's future work): which vectors to drop, at which cost.

Legend: K slots of a passage, N vectors of all passages, P passages, C chosen passages, M query vectors, Q queries,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import torch

from diffretriever.collections import Qrels, Run, open_collection
from diffretriever.core.progress import track
from diffretriever.evaluation.exclusion import settled_by_index
from diffretriever.evaluation.formats.tables import Interval
from diffretriever.evaluation.measures import evaluate
from diffretriever.evaluation.statistics import bootstrap_interval, holm, t_test_p
from diffretriever.index.damage import finite_rows
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.search import SearchOptions
from diffretriever.search import encoder_of
from diffretriever.search.batch import kept_hits, searched_depth
from diffretriever.studies.budgets.pruning_config import PruneSlotsJob, Rule
from diffretriever.studies.budgets.sweep_files import Outcomes, SweptSplit, open_splits, read_queries, read_settings
from diffretriever.vectors.hits import Hits, Passages, TopK
from diffretriever.vectors.maxsim import FP32_ROUNDING, Vectors, add_exact, contenders, longest, maxsim
from diffretriever.vectors.representations import Representations, offsets_of, read_vectors

PruneRule: TypeAlias = Literal["all", "same number", "threshold", "first slots", "encoded"]
"""Which slots stay; see `PrunePoint`."""
_PRUNING: tuple[PruneRule, ...] = ("same number", "threshold")
"""Rules that drop the cheapest slots; the others are baselines."""

_PASSAGES_AT_ONCE = 4096
_BATCH_ROWS = 4096
_QUERIES_AT_ONCE = 32
# Passages of a run that are measured.
_DEPTH = 100
# Vectors are stored in fp16.
_BYTES_A_NUMBER = 2


@dataclass(frozen=True, slots=True, eq=False)
class Removals:
    """The order in which each passage's slots are dropped, and the cost of each removal."""

    offsets: np.ndarray
    ranks_N: np.ndarray
    """int64 [N], 0 for the slot of a passage that goes first; its last slot never goes."""
    costs_N: np.ndarray
    """float64 [N], never falling along the order; infinite for the slot that stays."""

    def keep_each(self, most: int) -> np.ndarray:
        """Return which vectors stay when every passage keeps its last `most`, bool [N]; `most` is at least 1."""
        counts_P = np.diff(self.offsets)
        return self.ranks_N >= np.repeat(counts_P - most, counts_P)

    def keep_total(self, total: int) -> np.ndarray:
        """Return which vectors stay, bool [N], when the cheapest removals of all passages leave `total` vectors.

        One threshold on the cost serves all passages. Ties go by position in the removal order, then by passage. Every
        passage keeps a slot.
        """
        removable = int(np.isfinite(self.costs_N).sum())
        n_dropped = min(max(len(self.costs_N) - total, 0), removable)
        kept_N = np.ones(len(self.costs_N), dtype=bool)
        kept_N[np.lexsort((self.ranks_N, self.costs_N))[:n_dropped]] = False
        return kept_N


def removals(vectors_NH: np.ndarray, offsets: np.ndarray) -> Removals:
    """Return the removals of all passages, each by itself as `removal_orders` has them."""
    ranks_N = np.zeros(len(vectors_NH), dtype=np.int64)
    costs_N = np.full(len(vectors_NH), np.inf)
    counts_P = np.diff(offsets)
    for count in np.unique(counts_P[counts_P > 0]).tolist():
        alike = offsets[:-1][counts_P == count]
        for start in range(0, len(alike), _PASSAGES_AT_ONCE):
            rows_PK = alike[start : start + _PASSAGES_AT_ONCE, None] + np.arange(count)
            order_PK, losses_PK = removal_orders(vectors_NH[rows_PK])
            gone_PK = np.take_along_axis(rows_PK, order_PK, axis=1)
            stays_P1 = rows_PK.sum(axis=1, keepdims=True) - gone_PK.sum(axis=1, keepdims=True)
            ranks_N[gone_PK], ranks_N[stays_P1] = np.arange(count - 1), count - 1
            costs_N[gone_PK] = np.maximum.accumulate(np.diff(losses_PK, prepend=0.0, axis=1), axis=1)
    return Removals(offsets, ranks_N, costs_N)


def removal_orders(vectors_PKH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order in which to drop the slots of passages with K slots each, and the loss after each removal.

    A query vector whose best slot is gone scores with that slot's nearest kept neighbour. The loss is the sum of 1 -
    cosine to the nearest kept slot over the dropped slots; each step drops the slot that adds least, of equals
    the later one.
    The order is int64 [P, K - 1] and the losses float64 [P, K - 1]; the last slot stays.
    """
    n_passages, n_slots = vectors_PKH.shape[:2]
    wide_PKH = vectors_PKH.astype(np.float64)
    cosines_PKK = wide_PKH @ wide_PKH.swapaxes(1, 2)
    # A product's last bits may depend on the side, and copies must tie.
    cosines_PKK = np.maximum(cosines_PKK, cosines_PKK.swapaxes(1, 2))
    everyone, slots = np.arange(n_passages), np.arange(n_slots)
    others_PKK = cosines_PKK.copy()
    others_PKK[:, slots, slots] = -np.inf
    kept_PK = np.ones((n_passages, n_slots), dtype=bool)
    order_PK = np.empty((n_passages, n_slots - 1), dtype=np.int64)
    losses_PK = np.empty((n_passages, n_slots - 1))
    for step in range(n_slots - 1):
        candidates_PK = _losses(others_PKK, kept_PK)
        # The last of equals.
        gone_P = n_slots - 1 - candidates_PK[:, ::-1].argmin(axis=1)
        order_PK[:, step], losses_PK[:, step] = gone_P, candidates_PK[everyone, gone_P]
        kept_PK[everyone, gone_P] = False
    return order_PK, losses_PK


def _losses(others_PKK: np.ndarray, kept_PK: np.ndarray) -> np.ndarray:
    """Score a dropped slot by its nearest kept slot, or by the second nearest when that one is the candidate."""
    near_PKK = np.where(kept_PK[:, None, :], others_PKK, -np.inf)
    places_PK = near_PKK.argmax(axis=2)
    first_PK = near_PKK.max(axis=2)
    np.put_along_axis(near_PKK, places_PK[:, :, None], -np.inf, axis=2)
    second_PK = near_PKK.max(axis=2)
    gone_PK = ~kept_PK
    now_P1 = np.where(gone_PK, 1.0 - first_PK, 0.0).sum(axis=1, keepdims=True)
    losses_PK = now_P1 + (1.0 - first_PK)
    with np.errstate(invalid="ignore"):
        rises_PK = np.where(gone_PK, first_PK - second_PK, 0.0)
    owners = np.nonzero(gone_PK)
    np.add.at(losses_PK, (owners[0], places_PK[owners]), rises_PK[owners])
    return np.where(kept_PK, losses_PK, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class PruneSource:
    """An index, its vectors (float16 [N, H]) with offsets (int64 [P + 1]), and queries encoded with `query_budget`.

    `encoded` has, for each smaller K_p that was swept, the values of the dense run by query id and the index's number
    of vectors.
    """

    index: PassageIndex
    passage_ids: list[str]
    vectors_NH: np.ndarray
    offsets: np.ndarray
    query_ids: list[str]
    queries: Representations
    query_budget: int
    qrels: Qrels
    exclude_self: bool
    encoded: dict[int, tuple[dict[str, float], int]] = field(default_factory=dict)


def open_source(job: PruneSlotsJob) -> PruneSource:
    """Read the index, queries and judgements that the job names; encode queries only without a sweep."""
    return _of_index(job) if job.sweep is None else _of_sweep(job)


def _of_sweep(job: PruneSlotsJob) -> PruneSource:
    assert job.sweep is not None, "the caller has checked this"
    (split,) = open_splits([job.sweep])
    k_q = job.query_budget or split.manifest.query_budgets[-1]
    k_p = split.manifest.passage_budgets[-1]
    index = PassageIndex.open(str(split.index_folder(k_p)))
    ids, vectors_NH, offsets = _passages(index)
    return PruneSource(
        index=index,
        passage_ids=ids,
        vectors_NH=vectors_NH,
        offsets=offsets,
        query_ids=list(read_queries(split.folder, split.split)),
        queries=split.encoded(k_q),
        query_budget=k_q,
        qrels=split.qrels(job.collection),
        exclude_self=read_settings(split.folder)["exclude_self"],
        encoded=_encoded(split, k_q, k_p, job.measure),
    )


def _encoded(split: SweptSplit, k_q: int, below: int, measure: str) -> dict[int, tuple[dict[str, float], int]]:
    manifest = split.manifest
    if "dense" not in manifest.modes or measure not in manifest.measures:
        return {}
    outcomes = Outcomes.read(split.folder, split.split, "dense", measure)
    found = {}
    for k_p in manifest.passage_budgets:
        place = str(split.index_folder(k_p))
        if k_p < below and PassageIndex.exists(place):
            values = dict(zip(outcomes.queries, outcomes.at(Budget(k_q, k_p)).tolist(), strict=True))
            found[k_p] = (values, count_vectors(PassageIndex.open(place)))
    return found


def _of_index(job: PruneSlotsJob) -> PruneSource:
    assert job.index is not None, "the config has checked this"
    assert job.collection is not None, "the config has checked this"
    index = PassageIndex.open(job.index)
    retriever = index.manifest.retriever
    if not has_slots(retriever):
        raise ValueError(f"{job.index} is of the {retriever.method} method, which has no slots to prune")
    collection = open_collection(job.collection)
    asked, qrels = collection.queries(job.split), collection.qrels(job.split)
    k_q = job.query_budget or retriever.budget.query
    options = SearchOptions(index=job.index)
    encoder = encoder_of(index, options)
    ids, vectors_NH, offsets = _passages(index)
    return PruneSource(
        index=index,
        passage_ids=ids,
        vectors_NH=vectors_NH,
        offsets=offsets,
        query_ids=[query.id for query in asked],
        queries=encoder.encode_queries([query.text for query in asked], [k_q] * len(asked)),
        query_budget=k_q,
        qrels=qrels,
        exclude_self=settled_by_index(job, index, asked, qrels)[0].drops_self,
    )


def _passages(index: PassageIndex) -> tuple[list[str], np.ndarray, np.ndarray]:
    ids: list[str] = []
    parts, counts = [], []
    for batch in finite_rows(index.uri, index.batches(["id", "reps"], _BATCH_ROWS)):
        vectors_NH, offsets = read_vectors(batch)
        ids += batch.column("id").to_pylist()
        parts.append(vectors_NH)
        counts.append(np.diff(offsets))
    if not ids:
        raise ValueError(f"{index.uri} holds no passages: encode some first")
    return ids, np.concatenate(parts), offsets_of(np.concatenate(counts))


def count_vectors(index: PassageIndex) -> int:
    """Return the number of slot vectors of an index."""
    # Every vector has its slot word, and those are far smaller to read.
    batches = index.batches(["slot_tokens"], _BATCH_ROWS)
    return sum(len(batch.column("slot_tokens").flatten()) for batch in batches)


def search_kept(
    queries: Representations, vectors_NH: np.ndarray, offsets: np.ndarray, passage_ids: Sequence[str], k: int
) -> Hits:
    """Return each query's best k passages by mean MaxSim (paper Eq. 2), exact as in every other search."""
    known, numbers_P = Passages.numbered(pa.array(passage_ids, pa.large_string()))
    passages, widened_NH = Vectors(vectors_NH, offsets), torch.from_numpy(vectors_NH.astype(np.float32))
    relative_error = FP32_ROUNDING * longest(widened_NH.numpy())
    parts: list[Hits] = []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        part = queries.take(np.arange(start, min(start + _QUERIES_AT_ONCE, len(queries))))
        asked, best = Vectors(part.vectors_MH.astype(np.float32), part.offsets), TopK(len(part), k, known)
        scores_QP = maxsim(torch.from_numpy(asked.vectors_MH), asked.offsets, widened_NH, offsets).numpy()
        add_exact(asked, passages, numbers_P, contenders(asked, scores_QP, relative_error, best), best)
        parts.append(best.results())
    return Hits(
        known,
        offsets_of(np.concatenate([hits.counts_Q for hits in parts])),
        np.concatenate([hits.numbers_F for hits in parts]),
        np.concatenate([hits.scores_F for hits in parts]),
    )


class PruneTest(Model):
    """A point of the curve less another, by the paired two-sided t-test over queries."""

    difference: float
    t_test: float
    """p, corrected by Holm for all points that are compared with the same."""


class PrunePoint(Model):
    """Passages with some of their slots, searched densely."""

    rule: PruneRule
    """`all`: nothing pruned. `same number`: of every passage the cheapest slots go until k are left. `threshold`: the
    cheapest of all passages go until k are left on average. `first slots`: the first k stay. `encoded`: the sweep's
    index that was encoded with K_p = k."""
    keep: int
    """k."""
    average: float
    """Slots that a passage has on average."""
    bytes: int
    """Of the vectors, at two a number."""
    mean: float
    interval: Interval
    """Bootstrap 95% interval of the mean."""
    against_all: PruneTest | None
    """None for the unpruned passages themselves."""
    against_first: PruneTest | None
    """Pruned less `first slots` with the same k; None for the other rules."""
    against_encoded: PruneTest | None
    """Pruned less `encoded` with the same k; None for the other rules, or without that index."""


class _Measured(NamedTuple):
    vectors: int
    values_Q: np.ndarray


def curve_points(source: PruneSource, keep: tuple[int, ...], measure: str) -> Iterator[PrunePoint]:
    """Yield the points: nothing pruned, then each rule by rising k."""
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


def _measured(source: PruneSource, keep: tuple[int, ...], measure: str) -> dict[tuple[PruneRule, int], _Measured]:
    order = removals(source.vectors_NH, source.offsets)
    most = int(np.diff(source.offsets).max())
    points: list[tuple[Rule, int]] = [(rule, k) for rule in get_args(Rule) for k in keep]
    every_N = np.ones(len(source.vectors_NH), dtype=bool)
    measured: dict[tuple[PruneRule, int], _Measured] = {("all", most): _values(source, every_N, measure)}
    for rule, k in track(points, "pruning", "points"):
        measured[rule, k] = _values(source, kept_by(rule, source, order, k), measure)
    for k in (k for k in keep if k in source.encoded):
        values, vectors = source.encoded[k]
        measured["encoded", k] = _Measured(vectors, np.array([values[query] for query in source.qrels]))
    return measured


def kept_by(rule: Rule, source: PruneSource, order: Removals, k: int) -> np.ndarray:
    """Return which vectors stay, bool [N], when passages keep k slots, each or on average."""
    counts_P = np.diff(source.offsets)
    if rule == "first slots":
        places_N: np.ndarray = np.arange(len(source.vectors_NH)) - np.repeat(source.offsets[:-1], counts_P)
        return places_N < k
    if rule == "same number":
        return order.keep_each(k)
    # As many vectors as when every passage keeps k: passages that never had k count with what they have.
    return order.keep_total(int(np.minimum(counts_P, k).sum()))


def _values(source: PruneSource, kept_N: np.ndarray, measure: str) -> _Measured:
    depth = searched_depth(_DEPTH, exclude_self=source.exclude_self)
    offsets = offsets_of(kept_N)[source.offsets]
    hits = search_kept(source.queries, source.vectors_NH[kept_N], offsets, source.passage_ids, depth)
    kept = kept_hits(source.query_ids, hits, _DEPTH, exclude_self=source.exclude_self)
    values = evaluate(Run(source.query_ids, kept), source.qrels, [measure]).per_query[measure]
    return _Measured(int(kept_N.sum()), np.array([values[query] for query in source.qrels]))


def _tests(
    measured: Mapping[tuple[PruneRule, int], _Measured], other: PruneRule
) -> dict[tuple[PruneRule, int], PruneTest]:
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
