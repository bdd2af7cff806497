"""Measures of a run against qrels, computed by ir_measures, and their overlap.

Legend: Q queries of the qrels.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ir_measures.measures import Measure, SumAgg

from diffretriever.collections import Qrels, Run
from diffretriever.collections.chunks import CHUNK_ID
from diffretriever.evaluation.exclusion import count_own_first
from diffretriever.schemas.base import suggest
from diffretriever.schemas.evaluate import DEFAULT_MEASURES, Overlap

_CUT = frozenset({"P", "R", "RR", "AP", "nDCG", "Success", "Judged", "ERR"})
"""Measures that, given a cutoff, are defined only by the ranks down to it and the qrels.

P, Success and Judged count among those ranks; R and AP divide what they find there by the number of relevant passages
in the qrels, and nDCG by the gain of the best order of those; RR and ERR go down the ranks as far as the cutoff. So
they are the same where the run ends there. Leaving out what was not judged (`judged_only`) moves later ranks up;
R-precision, bpref, infAP, interpolated precision, the measures of sets, RBP, Compat and all without a cutoff look
at ranks of any depth, or at how many there are.
"""

_GRADED = frozenset({"nDCG@10"})
"""Of the default measures."""
_MSMARCO = "msmarco"
_BINARY_SPLITS = ("train", "dev")
"""MS MARCO's own queries, with one relevant passage; those of TREC have graded judgements."""
_DEPTH = 10
"""First passages of a query that are looked up among the judged ones."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The measures of one run, named as the user wrote them.

    Attributes:
        mean: measure → mean over all queries of the qrels; the sum for measures in `summed`.
        per_query: measure → query id → value.
        summed: measures that ir_measures sums over queries: NumQ, NumRet, NumRel and NumRelRet.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    summed: frozenset[str] = frozenset()

    def scale(self, measure: str) -> int:
        """Return the factor from a mean over queries to `mean`: 1, or Q for summed measures."""
        return len(self.per_query[measure]) if measure in self.summed else 1


def official_measure(collection: str, split: str) -> str:
    """Return the main measure of published results (paper §4): MRR@10 for MS MARCO's own queries, else nDCG@10."""
    is_binary = collection.lower().startswith(_MSMARCO) and split.startswith(_BINARY_SPLITS)
    return "MRR@10" if is_binary else "nDCG@10"


def measures_of(collection: str | None, split: str) -> tuple[str, ...]:
    """Return `DEFAULT_MEASURES`; on TREC's queries of MS MARCO passages, binary ones count grades 2 and above."""
    collection = (collection or "").lower()
    if not collection.startswith(_MSMARCO) or "document" in collection or split.startswith(_BINARY_SPLITS):
        return DEFAULT_MEASURES
    return tuple(name if name in _GRADED else name.replace("@", "(rel=2)@") for name in DEFAULT_MEASURES)


def parse_measures(names: Iterable[str]) -> list[Measure]:
    """Parse names such as `nDCG@10`, `MRR@10`, `Recall@100`.

    Raises:
        ValueError: Unknown or unsupported measure (with a suggestion), or a cutoff or grade below 1.
    """
    return [_parse_measure(name) for name in names]


def deepest_rank(measures: Iterable[Measure]) -> int | None:
    """Return the deepest rank that these measures read; None for all ranks."""
    depths = [_depth(measure) for measure in measures]
    return None if None in depths else max(filter(None, depths), default=None)


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES) -> EvaluationResult:
    """Measure a run against qrels (query id → passage id → relevance).

    All queries of the qrels count: missing ones, and those without relevant passages, are 0. Other queries are ignored.

    Raises:
        ValueError: Empty qrels, a measure that cannot be computed, or passages that are chunks of judged documents.
    """
    if not qrels:
        raise ValueError("the qrels hold no query: give the qrels of the split that was searched")
    parsed = dict(zip(measures, parse_measures(measures), strict=True))
    _refuse_chunks(run, qrels)
    ranked = _by_rank(run, qrels, deepest_rank(parsed.values()))
    groups: dict[Measure | None, set[Measure]] = {}
    for measure in parsed.values():
        # Providers can mix up measures that differ in other parameters than the cutoff: those are computed alone.
        groups.setdefault(measure if measure.params.keys() - {"cutoff"} else None, set()).add(measure)
    values = {key: value for group in groups.values() for key, value in _compute(group, qrels, ranked).items()}
    per_query = {
        name: {query: values.get((measure, query), measure.DEFAULT) for query in qrels}
        for name, measure in parsed.items()
    }
    summed = frozenset(name for name, measure in parsed.items() if isinstance(measure.aggregator(), SumAgg))
    mean = {name: float((np.sum if name in summed else np.mean)([*v.values()])) for name, v in per_query.items()}
    return EvaluationResult(mean, per_query, summed)


def _refuse_chunks(run: Run, qrels: Qrels) -> None:
    ids = run.hits.passages.ids
    chunks = ids.filter(pc.match_substring_regex(ids, CHUNK_ID.pattern)).to_pylist()
    judged = {passage for relevant in qrels.values() for passage in relevant} if chunks else set()
    for chunk in chunks:
        document = CHUNK_ID.sub("", chunk)
        if chunk not in judged and document in judged:
            raise ValueError(
                f"'{chunk}' is a chunk, and the qrels judge the whole of '{document}': search again with "
                '--documents max (in Python documents="max"), which ranks documents by their chunks'
            )


def _parse_measure(name: str) -> Measure:
    try:
        measure = ir_measures.parse_measure(name)
        known = ir_measures.DefaultPipeline.supports(measure)
    except (NameError, ValueError, AssertionError, TypeError):
        known = False
    if known:
        for part in ("cutoff", "rel"):
            if measure.params.get(part, 1) < 1:
                raise ValueError(f"'{name}' has a {part} of {measure.params[part]}: the least is 1")
        return measure
    cutoff = name.partition("@")[2]
    families = list(ir_measures.measures.registry)
    names = [*(f"{each}@{cutoff}" for each in families if cutoff.isdigit()), *families, *DEFAULT_MEASURES]
    raise ValueError(f"'{name}' is not a measure that ir_measures can compute.{suggest(name, names)}")


def _depth(measure: Measure) -> int | None:
    if measure.NAME not in _CUT or measure.params.get("judged_only") or "cutoff" not in measure.params:
        return None
    return int(measure["cutoff"])


def _by_rank(run: Run, queries: Iterable[str], depth: int | None) -> dict[str, dict[str, float]]:
    """Replace scores by ranks: the providers of ir_measures break ties differently, and some round to fp32."""
    hits = run.hits if depth is None else run.hits.first(depth)
    names, ends = hits.names(), hits.offsets.tolist()
    values = [float(-rank) for rank in range(int(np.diff(hits.offsets).max(initial=0)))]
    ranked = {query: names[start:end] for query, start, end in zip(run.query_ids, ends[:-1], ends[1:], strict=True)}
    return {query: dict(zip(ranked[query], values, strict=False)) for query in queries if ranked.get(query)}


def _compute(
    measures: Iterable[Measure], qrels: Qrels, run: Mapping[str, Mapping[str, float]]
) -> dict[tuple[Measure, str], float]:
    # gdeval reads a query id from its last hyphen on, and accepts digits only.
    numbers = {str(number): query for number, query in enumerate(run, 1)}
    numbered_qrels = {number: qrels[query] for number, query in numbers.items()}
    computed = [measure() for measure in measures]
    for measure in computed:
        # ir_measures uses this if a provider returns no value.
        measure.DEFAULT = math.nan
    try:
        metrics = list(ir_measures.iter_calc(computed, numbered_qrels, {n: run[query] for n, query in numbers.items()}))
    except (ArithmeticError, subprocess.CalledProcessError) as error:
        names = ", ".join(sorted(map(str, computed)))
        raise ValueError(
            f"ir_measures could not compute {names} on this run ({error}): leave some out (gdeval, which computes ERR "
            "and nDCG(dcg='exp-log2'), takes grades up to 4)"
        ) from error
    values: dict[tuple[Measure, str], float] = {}
    for metric in metrics:
        query = numbers[metric.query_id]
        if not math.isnan(metric.value):
            values[metric.measure, query] = float(metric.value)
        elif max(qrels[query].values(), default=0) >= metric.measure.params.get("rel", 1):
            # Some providers skip queries without a relevant passage, but no others.
            raise ValueError(f"ir_measures returns no {metric.measure} for query '{query}': leave that measure out")
    return values


def relevant_in(qrels: Qrels) -> list[str]:
    """Return the passages that are relevant to any query, in order of id."""
    return sorted({passage for values in qrels.values() for passage, value in values.items() if value > 0})


def overlap_of(run: Run, qrels: Qrels) -> Overlap:
    """Return the overlap of a run with the qrels."""
    hits = run.of_queries(list(qrels)).hits
    first = hits.first(_DEPTH)
    counts_Q = np.diff(first.offsets)
    queries = [query for query, count in zip(qrels, counts_Q.tolist(), strict=True) for _ in range(count)]
    judged = sum(passage in qrels[query] for query, passage in zip(queries, first.names(), strict=True))
    retrieved = pa.array(np.unique(hits.numbers_F))
    known = pc.is_in(hits.passages.ids.take(retrieved), value_set=pa.array(relevant_in(qrels), pa.large_string()))
    return Overlap(
        queries=int((counts_Q > 0).sum()),
        judged=judged / len(queries) if queries else 0.0,
        relevant=int(pc.sum(known).as_py() or 0),
        own_first=count_own_first(run, qrels),
    )
