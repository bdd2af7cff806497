"""What benchmarks/search.py holds exact search against, and how found passages are compared.

Legend: M query vectors, N vectors of all passages, P passages, K slots of a passage, H hidden size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks._search_data import MadeUpVectors, name
from benchmarks._search_figures import Timed
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.topk import Hits
from diffretriever.search.dense.coded import CodedPassages, CodedScan
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.stream import StreamingScan
from schemas.search import SearchOptions

T = TypeVar("T")
K = 100
_SAMPLE = 100
_CPU = torch.device("cpu")


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


def queries_of(made: MadeUpVectors, count: int) -> tuple[Representations, Representations]:
    """Return the queries that are timed, and others to calibrate with."""
    return made.queries(count), made.queries(_SAMPLE, seed=1)


def vectors_of(queries: Representations) -> np.ndarray:
    """Return float32 [M, H]."""
    return queries.vectors_MH.astype(np.float32)


def found_before(folder: str, file: str) -> Any:
    """Return what `prepare` of the loops found."""
    return json.loads((Path(folder) / f"{file}.json").read_text("utf-8"))


def stream_of(index: PassageIndex, slots: int) -> StreamingScan:
    """Return the scan of the table itself."""
    return StreamingScan(index, SearchOptions(index=index.uri), _CPU, slots)


def coded_of(index: PassageIndex, slots: int) -> CodedScan:
    """Return the exact search by codes."""
    options = SearchOptions(index=index.uri)
    return CodedScan(CodedPassages(open_segments(index)[0]), [], stream_of(index, slots), options, _CPU)
