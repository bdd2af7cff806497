"""The capacity plan of an index: hours, bytes, memory and seconds a query, before anything is encoded.

Bytes of vectors are exact. The constants for texts, ids and small numbers were measured on the built-in collection
(4,729 passages, Lance file format 2.2).

Legend: M query vectors, N passage vectors, P passages, H hidden size.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from diffretriever.backbones.source import resolve_source
from diffretriever.collections import Passage
from diffretriever.core.files import understood
from diffretriever.presets import load_retriever
from diffretriever.schemas.accelerate import CodeLayout
from diffretriever.schemas.codec import Bits, CodecConfig
from diffretriever.schemas.retriever import NeuralRetriever, Side, has_slots, is_neural
from diffretriever.studies.planning_config import BudgetPlan, CapacityPlan, PlanJob
from diffretriever.vectors.kernels import scan_of
from diffretriever.vectors.sketches import READ_BYTES, SKETCH_BYTES

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder

GIB = 1 << 30
SAMPLE = 256
"""Passages that are encoded to measure."""
_WARM_UP = 16
"""Passages encoded before the clock starts."""

HIDDEN_SIZES = {
    "Dream-org/Dream-v0-Instruct-7B": 3584,
    "GSAI-ML/LLaDA-8B-Instruct": 4096,
    "GSAI-ML/LLaDA-1.5": 4096,
    "Qwen/Qwen2.5-7B-Instruct": 3584,
    "meta-llama/Meta-Llama-3-8B-Instruct": 4096,
    "colbert-ir/colbertv2.0": 128,
    "minilm": 384,
}
"""H by backbone; the config of any other backbone names it."""
_TOKENS = 75.0
"""Default tokens of a passage."""
_QUERY_TOKENS = 32
"""Tokens of a query with token vectors: ColBERT pads queries to this length."""
_IMPACTS = 30.0
_BYTES_PER_TOKEN = 4.3
"""English text in the vocabulary of the built-in backbone."""
_SECONDS_PER_HOUR = 3600

ZSTD_SHARE = 0.79
"""What zstd at level 3 leaves of unit vectors in bf16, which is how the paper's index sizes come about
(0.777 to 0.790, whatever the number of vectors)."""
TEXT_SHARE = 0.63
"""What Lance's compression leaves of titles and texts."""
POSTING = 6
"""Row 2, weight 4."""
_FP16 = 2
_SCALE = 4
_ROW = 40
"""Id, digest 16, number of tokens 1, and offsets."""
_SLOT_WORD = 2
_IMPACT = 6
"""The weight's 4 and the id's 2, which Lance packs into as many bits as the largest id of a page has."""
_MEAN_PER_PASSAGE, _SLOTS_PER_PASSAGE = 8, 12
"""Of a passage: its row and the scale of its mean's code; number of vectors, error bound and length bound."""
_SCAN_PER_PASSAGE = 28
"""Table positions and offsets take 8 bytes a passage, the two bounds and a query's score 4."""

_CANDIDATES = 200
"""More than most calibrations of sketches came to."""
_READING = 0.0025
"""Seconds that candidates take besides; with the two below, as measured of 60,000 passages of 16 vectors and a million
of 4, which lay in the machine's memory (docs/reports/2026-11-26-cpu.md, "A model's vectors")."""
_READING_PASSAGE = 13e-6
_READING_BYTE = 2e-9

_PROBE_BYTES = 64 << 20
"""Codes that the scan is timed on: more than most caches hold."""
_LEAST_REPEATS = 3
_SECONDS = 0.5


def retrievers(job: PlanJob) -> list[NeuralRetriever]:
    """Return the retriever with each of the budgets; raise `ValueError` for one without vectors."""
    budgets = job.budget or (None,)
    made = [load_retriever(job.retriever, job.backbone, budget, protocol=job.protocol) for budget in budgets]
    neural = [retriever for retriever in made if is_neural(retriever)]
    if len(neural) < len(made):
        raise ValueError(f"--retriever {job.retriever} makes no vectors: there is nothing to plan for")
    return neural


def make_plan(job: PlanJob, counted: Counted | None, measured: Sequence[Measured]) -> CapacityPlan:
    """Return the plan for the job's retrievers; `measured` has one result for each retriever, or none."""
    made = retrievers(job)
    known: list[Measured | None] = [*measured] or [None] * len(made)
    passages = job.passages or (counted.passages if counted else 0)
    text_bytes = _text_bytes(job, counted)
    tokens = job.tokens or (known[0].tokens if known[0] else text_bytes / _BYTES_PER_TOKEN)
    hidden_size = known[0].hidden_size if known[0] else _hidden_size(made[0])
    plans = []
    for retriever, facts in zip(made, known, strict=True):
        vectors = facts.vectors if facts else _vectors(retriever, "passage", tokens)
        impacts = (facts.impacts if facts else _IMPACTS) if "sparse" in retriever.modes else 0.0
        shape = Shape(passages, hidden_size, vectors, impacts, text_bytes)
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


def _budget_plan(job: PlanJob, retriever: NeuralRetriever, shape: Shape, rate: float | None) -> BudgetPlan:
    scanned = scanned_bytes(shape)
    if job.bandwidth is not None:
        speed = job.bandwidth * 1e9
    else:
        query_vectors = round(_vectors(retriever, "query", _QUERY_TOKENS))
        speed = scan_rate(query_vectors, max(1, round(shape.vectors)), shape.hidden_size)
    return BudgetPlan(
        budget=str(retriever.budget) if has_slots(retriever) else retriever.method,
        vectors=shape.vectors,
        impacts=shape.impacts,
        rate=rate,
        hours=None if rate is None else shape.passages / rate / _SECONDS_PER_HOUR,
        layouts=vector_layouts(shape),
        table_bytes=table_bytes(shape),
        codes_bytes=codes_bytes(shape),
        means_bytes=codes_bytes(shape, "means") + sketches_bytes(shape),
        postings_bytes=postings_bytes(shape),
        search_memory=search_memory(shape),
        scanned=scanned,
        scan_rate=speed,
        seconds_per_query=scanned / speed,
        sketches_bytes=sketches_bytes(shape),
        sketches_seconds=sketches_seconds(shape, speed),
    )


def _text_bytes(job: PlanJob, counted: Counted | None) -> float:
    if job.tokens is None and counted is not None:
        return counted.text_bytes
    return (job.tokens or _TOKENS) * _BYTES_PER_TOKEN


def _vectors(retriever: NeuralRetriever, side: Side, tokens: float) -> float:
    most = retriever.max_vectors(side)
    return most if retriever.has_query_budget else min(tokens, most)


def _hidden_size(retriever: NeuralRetriever) -> int:
    source, revision = retriever.backbone.source, retriever.backbone.revision
    if source in HIDDEN_SIZES:
        return HIDDEN_SIZES[source]
    file = resolve_source(source, revision, weights=False) / "config.json"
    with understood(file, "add --measure, to encode a sample"):
        config = json.loads(file.read_bytes())
        return int(config["hidden_size" if "hidden_size" in config else "d_model"])


@dataclass(frozen=True)
class Counted:
    """A collection's size."""

    passages: int
    text_bytes: float
    """Average of title and text, UTF-8."""
    sample: list[Passage]
    """Passages drawn at random."""


@dataclass(frozen=True)
class Measured:
    """What encoding a sample gave; all but `passages`, `rate` and `hidden_size` are averages of a passage."""

    passages: int
    rate: float
    """Passages a second."""
    hidden_size: int
    tokens: float
    vectors: float
    impacts: float


def count(passages: Iterable[Passage]) -> Counted:
    """Count passages and draw a sample, in one pass."""
    draw = random.Random(0)  # noqa: S311 (no secret)
    n, size = 0, 0
    sample: list[Passage] = []
    for passage in passages:
        n += 1
        size += len(passage.title.encode()) + len(passage.text.encode())
        place = n - 1 if n <= SAMPLE else draw.randrange(n)
        if place < SAMPLE:
            sample[place : place + 1] = [passage]
    if n == 0:
        raise ValueError("the collection has no passages that can be used: there is nothing to plan for")
    return Counted(n, size / n, sample)


def measure(encoder: Encoder, sample: Sequence[Passage]) -> Measured:
    """Encode the sample, preparation included, and time it; a part of it is encoded before, to warm up."""
    titles, texts = [p.title for p in sample], [p.text for p in sample]
    encoder.encode_passages(titles[:_WARM_UP], texts[:_WARM_UP])
    start = time.perf_counter()
    encoded = encoder.encode_passages(titles, texts)
    seconds = time.perf_counter() - start
    n = len(sample)
    return Measured(
        passages=n,
        rate=n / seconds,
        hidden_size=encoded.hidden_size,
        tokens=float(encoded.n_tokens.mean()),
        vectors=len(encoded.vectors_MH) / n,
        impacts=len(encoded.impact_ids) / n,
    )


@dataclass(frozen=True)
class Shape:
    """What sizes depend on; all but `hidden_size` may be averages."""

    passages: int
    hidden_size: int
    vectors: float
    """Of a passage."""
    impacts: float
    """Of a passage."""
    text_bytes: float
    """Of a passage, title included."""


def vector_layouts(shape: Shape) -> dict[str, int]:
    """Return the bytes of all vectors by layout: fp16, zstd, 8-bit codes, products."""
    vectors = shape.passages * shape.vectors
    raw = vectors * shape.hidden_size * _FP16
    layouts = {"fp16 or bf16": raw, "bf16, zstd": raw * ZSTD_SHARE, "8-bit codes": float(scanned_bytes(shape))}
    for bits in sorted(get_args(Bits), reverse=True):
        layouts[f"{bits}-bit products"] = vectors * CodecConfig(bits).bytes_per_vector(shape.hidden_size)
    return {name: round(size) for name, size in layouts.items()}


def table_bytes(shape: Shape) -> int:
    """Return the bytes of the Lance table's data files, once compacted."""
    vectors = shape.vectors * (shape.hidden_size * _FP16 + _SLOT_WORD)
    row = _ROW + shape.text_bytes * TEXT_SHARE + vectors + shape.impacts * _IMPACT
    return round(shape.passages * row)


def codes_bytes(shape: Shape, layout: CodeLayout = "vectors") -> int:
    """Return the bytes beside the table that dense searches read: 8-bit codes, vectors, codes of mean vectors."""
    means = shape.hidden_size + _MEAN_PER_PASSAGE
    if layout == "means":
        return shape.passages * means
    vectors = shape.vectors * (shape.hidden_size * (1 + _FP16) + _SCALE)
    return round(shape.passages * (vectors + means + _SLOTS_PER_PASSAGE))


def postings_bytes(shape: Shape) -> int:
    """Return the bytes of all impacts as postings."""
    return round(shape.passages * shape.impacts * POSTING)


def sketches_bytes(shape: Shape) -> int:
    """Return the bytes of sketches, all of which a search reads for a query from memory."""
    return shape.passages * SKETCH_BYTES


def sketches_seconds(shape: Shape, rate: float) -> float:
    """Return the seconds of a query by sketches with 200 candidates, whose vectors Lance reads from the table."""
    vectors = shape.vectors * shape.hidden_size * _FP16
    candidates = min(_CANDIDATES, shape.passages)
    return shape.passages * READ_BYTES / rate + _READING + candidates * (_READING_PASSAGE + vectors * _READING_BYTE)


def scanned_bytes(shape: Shape) -> int:
    """Return the bytes of codes that the exact scan reads for a query."""
    return round(shape.passages * shape.vectors * (shape.hidden_size + _SCALE))


def search_memory(shape: Shape) -> int:
    """Return the bytes that the exact scan of the codes keeps in memory."""
    return scanned_bytes(shape) + shape.passages * _SCAN_PER_PASSAGE


def scan_rate(query_vectors: int, passage_vectors: int, hidden_size: int) -> float:
    """Return the bytes of codes a second that one idle core scans for a query."""
    rng = np.random.default_rng(0)
    n_passages = max(1, _PROBE_BYTES // (passage_vectors * hidden_size))
    codes_NH = rng.integers(-127, 128, (n_passages * passage_vectors, hidden_size), np.int8)
    scales_N = np.ones(len(codes_NH), np.float32)
    offsets = np.arange(0, len(codes_NH) + 1, passage_vectors)
    query_MH = rng.integers(-99, 100, (query_vectors, hidden_size), np.int16)
    scores_P = np.empty(n_passages, np.float32)
    scales_M = np.ones(query_vectors, np.float32)
    scan = scan_of(codes_NH.shape[1])
    scan(codes_NH[:0], scales_N[:0], offsets[:0], offsets[:0], query_MH, scales_M, scores_P[:0])
    seconds: list[float] = []
    while len(seconds) < _LEAST_REPEATS or sum(seconds) < _SECONDS:
        start = time.thread_time()
        scan(codes_NH, scales_N, offsets[:-1], offsets[1:], query_MH, scales_M, scores_P)
        seconds.append(time.thread_time() - start)
    return (codes_NH.nbytes + scales_N.nbytes) / min(seconds)


def page(plan: CapacityPlan) -> str:
    """Return the plan as an aligned table with a heading."""
    heading = (
        f"{plan.passages:,} passages of {plan.tokens:.0f} tokens ({plan.text_bytes:.0f} bytes), {plan.retriever}, "
        f"vectors of {plan.hidden_size:,} numbers"
    )
    columns = [_cells(plan, budget) for budget in plan.budgets]
    lines = [("", *(budget.budget for budget in plan.budgets))]
    lines += [(label, *(column[label] for column in columns)) for label in columns[0]]
    return "\n".join([heading, "", *_aligned(lines)])


def _cells(plan: CapacityPlan, budget: BudgetPlan) -> dict[str, str]:
    cells = {"vectors a passage": f"{budget.vectors:.4g}", "impacts a passage": f"{budget.impacts:.4g}"}
    if budget.rate is not None:
        how = f"measured here on {plan.measured_on} passages" if plan.measured_on else "as given"
        cells[f"encoding, passages/s ({how})"] = f"{budget.rate:,.1f}"
        cells["encoding, hours of one device"] = f"{budget.hours:,.1f}"
    cells |= {f"vectors as {name}, GiB": _gib(size) for name, size in budget.layouts.items()}
    cells |= {
        "index: table with fp16 vectors, GiB": _gib(budget.table_bytes),
        "index: codes and vectors beside it, GiB": _gib(budget.codes_bytes),
        "index: postings beside it, GiB": _gib(budget.postings_bytes),
        "index: all three, GiB": _gib(budget.stored_bytes),
    }
    cells["index: codes of means and sketches alone, GiB"] = _gib(budget.means_bytes)
    where = "one core, measured here" if plan.bandwidth_measured else "as given"
    cells |= {
        "exact scan of the codes: memory, GiB": _gib(budget.search_memory),
        f"exact scan of the codes: GB/s ({where})": f"{budget.scan_rate / 1e9:.1f}",
        "exact scan of the codes: seconds a query": f"{budget.seconds_per_query:,.3g}",
    }
    cells["candidates by sketches: memory, GiB"] = _gib(budget.sketches_bytes)
    cells["candidates by sketches: seconds a query"] = f"{budget.sketches_seconds:,.3g}"
    return cells


def _gib(size: int) -> str:
    gib = size / GIB
    return f"{gib:,.2f}" if gib >= 1 else f"{gib:.4f}"


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
