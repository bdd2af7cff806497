"""What the search benchmark runs of ours, each loop in a process of its own, and the exact searches beside it.

Legend: M query vectors, N vectors of all passages, P passages, K slots of a passage, H hidden size.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks.measuring import peak_mb, serve_child
from benchmarks.search.figures import Built, Candidates, CountedWords, Timed
from benchmarks.search.vectors import SAMPLE_SEED, AnyVectors, Vectors, made_up_texts, name
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import CodeLayout
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.bm25 import Bm25Search, store_bm25
from diffretriever.search.dense.candidates import CandidateSearch, choose_count, counts_to_try
from diffretriever.search.dense.coded import CodedPassages, CodedScan
from diffretriever.search.dense.codes import build_fragment_codes, open_segments
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.fusion import FUSION_DEPTH, ranked
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

T = TypeVar("T")
K = 100
"""Passages wanted for a query."""
_TARGET = 0.99
"""Recall that budgets are calibrated to."""
_SAMPLE = 100
_QUERY_WORDS = 6
"""Queries to calibrate with."""
_BATCH = 32
_TURN = 3
"""Queries that a way answers in a row after one that is not timed, for the seconds that others take leave it cold."""
_BF16_VALUES = 1 << 30
"""More would not fit into memory beside the same in fp32."""
_CPU = torch.device("cpu")


def prepare(folder: str, vectors: dict[str, Any], queries: int, layout: CodeLayout) -> Built:
    """Write the index and its codes, and what an exact search finds, for the others to compare with."""
    made = vectors_from(vectors)
    index = made.write(folder)
    start = time.perf_counter()
    for fragment in index.fragments():
        build_fragment_codes(index, fragment, layout)
    built = Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder) / "codes"))
    search, (asked, sample) = exact_of(index), queries_of(made, queries)
    for file, each in (("asked", asked), ("sample", sample)):
        (Path(folder) / f"{file}.json").write_text(json.dumps(list(search.search(each, K))), encoding="utf-8")
    return built


def candidates(folder: str, vectors: dict[str, Any], budgets: list[int], queries: int) -> Candidates:
    """Search through our candidate index, made already, at the budget that its calibration asks for and at others."""
    made, index = vectors_from(vectors), PassageIndex.open(folder)
    asked, sample = queries_of(made, queries)
    opened = CandidateIndex.open(open_segments(index)[0])
    tried = counts_to_try(K, made.passages)
    chosen, _ = choose_count(opened, sample, _numbered(index, found_before(folder, "sample")), tried, _TARGET)
    best = ids(found_before(folder, "asked"))
    scan = exact_of(index)
    runs: list[Timed] = []
    for budget in [chosen, *budgets]:
        limited = CandidateSearch(opened, [], stream_of(index), budget)
        search: EncodedSearch = limited if budget < made.passages else scan
        singles = [asked.take(np.array([i])) for i in range(queries)]
        # The first time what a query reads may lie on the disk, however often others have been asked.
        passes: list[list[float]] = [[], []]
        for times in passes:
            found = [ids(timed(lambda s=search, q=query: s.search(q, K), times))[0] for query in singles]  # type: ignore[misc]
        kind = "calibrated: " if not runs else ""
        label = f"{kind}{budget:,}" if budget < made.passages else f"{kind}all"
        runs.append(row(label, passes[1], found, best).model_copy(update={"first_ms": tuple(passes[0])}))
    return Candidates(name="ours: sketch", built=None, runs=runs, own_mb=own_mb(), peak_mb=peak_mb())


def build(folder: str) -> Built:
    """Make our candidate index."""
    index, size = PassageIndex.open(folder), folder_mb(Path(folder))
    start = time.perf_counter()
    CandidateIndex.build(index, open_segments(index)[0])
    return Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder)) - size)


def build_bm25(folder: str) -> CountedWords:
    """Count the words of all passages."""
    index, size = PassageIndex.open(folder), folder_mb(Path(folder))
    start = time.perf_counter()
    store_bm25(index)
    made = Built(seconds=time.perf_counter() - start, mb=folder_mb(Path(folder)) - size)
    return CountedWords(built=made, peak_mb=peak_mb())


def hybrid(folder: str, vectors: dict[str, Any], queries: int) -> dict[str, Any]:
    """Search by the sum of dense scores, of candidates, and BM25, each a thousand deep, as a searcher does."""
    made, index = vectors_from(vectors), PassageIndex.open(folder)
    asked, _ = queries_of(made, queries)
    opened = CandidateIndex.open(open_segments(index)[0])
    dense, words = CandidateSearch(opened, [], stream_of(index), FUSION_DEPTH), Bm25Search(index)
    compiled = made_up_texts(1, _QUERY_WORDS, 0)
    dense.search(asked.take(np.array([0])), K), words.search(compiled, K)
    for is_first in (True, False):
        times: dict[str, list[float]] = {"dense": [], "bm25": [], "sum": []}
        for number, text in enumerate(made_up_texts(queries, _QUERY_WORDS, SAMPLE_SEED)):
            query, start = asked.take(np.array([number])), time.perf_counter()
            lists: dict[ListName, Hits] = {
                "dense": timed(lambda q=query: dense.search(q, FUSION_DEPTH), times["dense"]),  # type: ignore[misc]
                "bm25": timed(lambda t=text: words.search([t], FUSION_DEPTH), times["bm25"]),  # type: ignore[misc]
            }
            found = ids(ranked("dense+bm25", lists, K))
            times["sum"].append((time.perf_counter() - start) * 1e3)
            assert len(found[0]) == min(K, made.passages), "enough passages have a word"
        if is_first:
            first_ms = times["sum"]
    ms = {"ms": times["sum"], "first_ms": first_ms, "dense_ms": times["dense"], "bm25_ms": times["bm25"]}
    return {"peak_mb": peak_mb(), **ms}


def exact(folder: str, vectors: dict[str, Any], queries: int, used: int) -> list[dict[str, Any]]:
    """Search in all exact ways in turn, and with one product of bfloat16, which is not exact, by the first queries."""
    made, index = vectors_from(vectors), PassageIndex.open(folder)
    asked, best = queries_of(made, queries)[0], ids(found_before(folder, "asked"))
    blocks = [torch.from_numpy(block.astype(np.float32)).view(-1, made.dims) for block in made.blocks()]
    single = torch.cat(blocks)
    del blocks
    stream, coded = stream_of(index), coded_of(index)
    ways = {
        "torch fp32, all in memory": lambda q: brute_force(single, made.slots, vectors_of(q)),
        "LanceDB flat": lambda q: lance(index, vectors_of(q), use_index=False),
        "ours: stream": lambda q: ids(stream.search(q, K))[0],
        "ours: codes": lambda q: ids(coded.search(q, K))[0],
    }
    if single.numel() <= _BF16_VALUES:
        half = single.bfloat16()
        ways["torch bf16, all in memory"] = lambda q: brute_force(half, made.slots, vectors_of(q))
    times: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, list[list[str]]] = {way: [] for way in ways}
    singles = [asked.take(np.array([i])) for i in range(used)]
    for start in range(0, used, _TURN):
        for way, search in ways.items():
            search(singles[start])
            for query in singles[start : start + _TURN]:
                found[way].append(timed(lambda s=search, q=query: s(q), times[way]))  # type: ignore[misc]
        sys.stderr.write(".")
    rows = [row(way, times[way], found[way], best) for way in ways]
    rows += _batched(coded, single, made)
    return [row.model_dump() for row in rows]


def _batched(coded: CodedScan, single: torch.Tensor, made: Vectors) -> list[Timed]:
    """Return times a query where 32 are asked at once: torch in fp32 first."""
    asked, rows = made.queries(_BATCH, seed=2), []
    best = ids(coded.search(asked, K))
    ours: list[float] = []
    for _ in range(3):
        timed(lambda: coded.search(asked, K), ours)
    vectors_MH = torch.from_numpy(vectors_of(asked))
    theirs: list[float] = []
    for _ in range(3):
        timed(lambda: _all_at_once(single, vectors_MH, made), theirs)
    for way, times in ((f"torch fp32, {_BATCH} at once", theirs), (f"ours: codes, {_BATCH} at once", ours)):
        rows.append(row(way, [each / _BATCH for each in times], best, best))
    return rows


def _all_at_once(single: torch.Tensor, vectors_MH: torch.Tensor, made: Vectors) -> None:
    for block in single.split(made.slots * 8192):
        (block @ vectors_MH.T).view(-1, made.slots, len(vectors_MH)).amax(dim=1).view(
            -1, _BATCH, made.query_slots
        ).mean(2)


def brute_force(vectors_NH: torch.Tensor, slots: int, query_MH: np.ndarray) -> list[str]:
    """Return the best passages by one product of all vectors with a query's, in the precision that they are in."""
    products_NM = vectors_NH @ torch.from_numpy(query_MH).to(vectors_NH.dtype).T
    scores_P = products_NM.view(-1, slots, len(query_MH)).amax(dim=1).float().mean(dim=1)
    return [name(row) for row in scores_P.topk(min(K, len(scores_P))).indices.tolist()]


def lance(index: PassageIndex, query_MH: np.ndarray, **options: Any) -> list[str]:
    """Return the best passages as LanceDB ranks them."""
    asked = {"column": "reps", "q": query_MH.tolist(), "k": K, "metric": "cosine", **options}
    table = index.dataset.scanner(columns=["id"], nearest=asked, disable_scoring_autoprojection=True).to_table()
    found: list[str] = table.column("id").to_pylist()
    return found


def timed(work: Callable[[], T], into: list[float]) -> T:
    """Return what `work` returns, and note the milliseconds that it took."""
    start = time.perf_counter()
    result = work()
    into.append((time.perf_counter() - start) * 1e3)
    return result


def recall(found: list[list[str]], exact: list[list[str]], k: int) -> float:
    """Return the mean share of the first k exact passages that are among the first k found."""
    shares = [len(set(ours[:k]) & set(best[:k])) / k for ours, best in zip(found, exact, strict=False)]
    return float(np.mean(shares))


def ids(hits: Hits) -> list[list[str]]:
    """Return the ids alone."""
    return [[passage for passage, _ in each] for each in hits]


def folder_mb(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def own_mb() -> float:
    """Return this process's memory without mapped files, in MB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e6


def row(way: str, times: list[float], found: list[list[str]], best: list[list[str]]) -> Timed:
    """Return a row of the tables."""
    return Timed(name=way, ms=times, recall_10=recall(found, best, 10), recall_100=recall(found, best, K))


def vectors_from(values: dict[str, Any]) -> Vectors:
    """Return the vectors that these settings describe."""
    found: Vectors = TypeAdapter(AnyVectors).validate_python(values)
    return found


def queries_of(made: Vectors, count: int) -> tuple[Representations, Representations]:
    """Return the queries that are timed, and others to calibrate with."""
    return made.queries(count), made.queries(_SAMPLE, SAMPLE_SEED)


def vectors_of(queries: Representations) -> np.ndarray:
    """Return float32 [M, H]."""
    return queries.vectors_MH.astype(np.float32)


def exact_of(index: PassageIndex) -> EncodedSearch:
    """Return the exact search by what codes there are: the scan of the table where there are those of means alone."""
    segments, _ = open_segments(index)
    return stream_of(index) if any(s.codes.slots is None for s in segments) else coded_of(index)


def found_before(folder: str, file: str) -> Hits:
    """Return what `prepare` found."""
    return Hits.of(json.loads((Path(folder) / f"{file}.json").read_text("utf-8")))


def _numbered(index: PassageIndex, hits: Hits) -> Hits:
    """Return hits with the numbers that passages have in the index."""
    numbers_P = index.order.passages.numbers_of(hits.passages.ids.to_pylist())
    return Hits(index.order.passages, hits.offsets, numbers_P[hits.numbers_F], hits.scores_F)


def stream_of(index: PassageIndex) -> StreamingScan:
    """Return the scan of the table itself."""
    return StreamingScan(index, SearchOptions(index=index.uri), _CPU)


def coded_of(index: PassageIndex) -> CodedScan:
    """Return the exact search by codes."""
    options = SearchOptions(index=index.uri)
    return CodedScan(CodedPassages(open_segments(index)[0]), [], stream_of(index), options)


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (prepare, build, candidates, exact, build_bm25, hybrid)})
