"""The plan: what was said, counted and measured, put together for each budget."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.planning import storage
from diffretriever.planning.probe import scan_rate
from diffretriever.planning.survey import Counted, Measured
from diffretriever.presets import load_retriever
from schemas.plan import BudgetPlan, CapacityPlan, PlanJob
from schemas.retriever import Bm25Retriever, LibraryRetriever, MaskedRetriever, NeuralRetriever

HIDDEN_SIZES = {
    "Dream-org/Dream-v0-Instruct-7B": 3584,
    "GSAI-ML/LLaDA-8B-Instruct": 4096,
    "GSAI-ML/LLaDA-1.5": 4096,
    "Qwen/Qwen2.5-7B-Instruct": 3584,
    "meta-llama/Meta-Llama-3-8B-Instruct": 4096,
    "minilm": 384,
}
"""H by backbone (reference §7.1 and §7.2 for the first; Qwen2.5 is of Dream's shape, Llama 3 of LLaDA's width)."""

_TOKENS = 75.0
_IMPACTS = 30.0
# English text in the vocabulary of the built-in backbone.
_BYTES_PER_TOKEN = 4.3
_SECONDS_PER_HOUR = 3600


def retrievers(job: PlanJob) -> list[NeuralRetriever]:
    """Return the retriever with each of the budgets.

    Raises:
        ValueError: there is no such retriever, or it has no slots or no vectors.
    """
    made = [load_retriever(job.retriever, job.backbone, budget, job.adapter) for budget in job.budget or (None,)]
    neural = [retriever for retriever in made if not isinstance(retriever, Bm25Retriever)]
    if len(neural) < len(made):
        raise ValueError(f"--retriever {job.retriever} makes no vectors: there is nothing to plan for")
    return neural


def make_plan(job: PlanJob, counted: Counted | None, measured: Sequence[Measured]) -> CapacityPlan:
    """Return the plan for the job's retrievers; `counted` if it has a collection, `measured` one for each or none.

    Raises:
        ValueError: the vectors' size is neither known nor given.
    """
    made = retrievers(job)
    known: list[Measured | None] = [*measured] or [None] * len(made)
    passages = job.passages or (counted.passages if counted else 0)
    text_bytes = _text_bytes(job, counted)
    tokens = job.tokens or (known[0].tokens if known[0] else text_bytes / _BYTES_PER_TOKEN)
    hidden_size = known[0].hidden_size if known[0] else job.hidden_size or _hidden_size(made[0])
    plans = []
    for retriever, facts in zip(made, known, strict=True):
        vectors = facts.vectors if facts else _vectors(retriever, tokens)
        impacts = _impacts(job, retriever, facts)
        shape = storage.Shape(passages, hidden_size, vectors, impacts, text_bytes)
        plans.append(_budget_plan(job, retriever, shape, facts.rate if facts else job.rate))
    return CapacityPlan(
        retriever=job.retriever,
        passages=passages,
        hidden_size=hidden_size,
        text_bytes=text_bytes,
        tokens=tokens,
        measured_on=known[0].passages if known[0] else 0,
        bandwidth_measured=job.bandwidth is None,
        budgets=plans,
    )


def _budget_plan(job: PlanJob, retriever: NeuralRetriever, shape: storage.Shape, rate: float | None) -> BudgetPlan:
    table, codes, postings = storage.table_bytes(shape), storage.codes_bytes(shape), storage.postings_bytes(shape)
    scanned, price = storage.scanned_bytes(shape), job.price_per_gib_month
    if job.bandwidth is not None:
        speed = job.bandwidth * 1e9
    else:
        speed = scan_rate(retriever.max_vectors("query"), max(1, round(shape.vectors)), shape.hidden_size)
    return BudgetPlan(
        budget=str(retriever.budget) if isinstance(retriever, MaskedRetriever) else retriever.method,
        vectors=shape.vectors,
        impacts=shape.impacts,
        rate=rate,
        hours=None if rate is None else shape.passages / rate / _SECONDS_PER_HOUR,
        layouts=storage.vector_layouts(shape),
        table_bytes=table,
        codes_bytes=codes,
        postings_bytes=postings,
        price_per_month=None if price is None else price * (table + codes + postings) / storage.GIB,
        search_memory=storage.search_memory(shape),
        scanned=scanned,
        scan_rate=speed,
        seconds_per_query=scanned / speed,
    )


def _text_bytes(job: PlanJob, counted: Counted | None) -> float:
    if job.tokens is None and counted is not None:
        return counted.text_bytes
    return (job.tokens or _TOKENS) * _BYTES_PER_TOKEN


def _vectors(retriever: NeuralRetriever, tokens: float) -> float:
    if isinstance(retriever, LibraryRetriever) and retriever.vectors == "token":
        return min(tokens, retriever.max_vectors("passage"))
    return retriever.max_vectors("passage")


def _impacts(job: PlanJob, retriever: NeuralRetriever, facts: Measured | None) -> float:
    if "sparse" not in retriever.modes:
        return 0.0
    if job.impacts is not None:
        return job.impacts
    return facts.impacts if facts else _IMPACTS


def _hidden_size(retriever: NeuralRetriever) -> int:
    source = retriever.backbone.source
    if source not in HIDDEN_SIZES:
        raise ValueError(f"the size of {source}'s vectors is not known here: give --hidden-size, or --measure")
    return HIDDEN_SIZES[source]
