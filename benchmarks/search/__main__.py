"""Dense search: exact scans and candidate indexes, ours and others', in one run: time, recall, build, size, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, StringConstraints

from benchmarks.measuring import Benchmark, header, in_child, run
from benchmarks.search.figures import (
    CANDIDATE_COLUMNS,
    EXACT_COLUMNS,
    GOALS,
    HYBRID_COLUMNS,
    HYBRID_GOALS,
    Built,
    Candidates,
    Figures,
    Hybrid,
)
from diffretriever.schemas.accelerate import CodeLayout

Size: TypeAlias = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?[km]-\d+-\d+$")]
Spread: TypeAlias = Literal["clustered", "independent", "real"]
Peer: TypeAlias = Literal["faiss", "lancedb"]
_THOUSANDS = {"k": 1_000, "m": 1_000_000}
_EXACT_GOAL_FOR: Size = "100k-16-384"
_BUDGETS = (200, 1000)


class SearchBenchmark(Benchmark):
    """Measure dense search, one query at a time, on one core: on made-up vectors, or on a model's."""

    sizes: tuple[Size, ...] = (_EXACT_GOAL_FOR,)
    """Passages, K_p and dimensions, such as 100k-16-384 or 8.84m-4-384; K_q is 4."""
    spread: tuple[Spread, ...] = ("clustered",)
    """`clustered`: slots of a passage are alike, and so are passages. `independent`: nothing is like anything. `real`:
    a model's own, which lie in the folder that `--real` names, and where there are too few, others drawn near them."""
    real: Path | None = None
    """What `python -m benchmarks.search.arrays` wrote."""
    queries: int = Field(default=100, ge=10)
    """For candidates."""
    exact_queries: NonNegativeInt = 12
    """For exact searches, which are slower; 0 leaves their table out, where all vectors in fp32 are more than memory
    holds."""
    beside: CodeLayout = "vectors"
    """What lies beside the table, as accelerate_index.py has it; with `means`, `--exact-queries 0`."""
    peers: tuple[Peer, ...] = ("faiss",)
    """Other libraries' indexes over the same vectors; '[]' for none. LanceDB's takes many minutes to build."""
    hybrid: bool = False
    """Also the sum of candidates' dense scores and BM25: made-up texts of 56 words, and queries of 6."""
    quick: bool = False
    """10,000 passages and 20 queries."""


def main(config: SearchBenchmark) -> None:
    """Run every case, print its tables, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    if "real" in config.spread and config.real is None:
        raise SystemExit("--spread real: say by --real where the vectors are (python -m benchmarks.search.arrays)")
    if "faiss" in config.peers and find_spec("faiss") is None:
        raise SystemExit("--peers: faiss is not installed: `pip install faiss-cpu`, or give the others alone")
    # Of Lance and numba; `in_child` sees to those of OpenMP.
    os.environ.update(LANCE_CPU_THREADS="1", NUMBA_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    if config.quick:
        small = {"sizes": ("10k-16-384",), "queries": 20, "exact_queries": 5}
        config = config.model_copy(update=small)
    about = header()
    figures = [_measure(config, size, spread) for size in config.sizes for spread in config.spread]
    text = ""
    for each in figures:
        text += f"\n{each.case}; codes: {each.codes.seconds:.1f} s, {each.codes.mb:.0f} MB\n"
        if each.exact:
            text += f"\n{format_table(each.exact_rows(), EXACT_COLUMNS)}\n"
        text += f"\n{format_table(each.candidate_rows(), CANDIDATE_COLUMNS)}\n"
        if each.hybrid:
            goal = HYBRID_GOALS.get(each.case.partition(",")[0])
            text += f"\n{format_table([each.hybrid.row(goal)], HYBRID_COLUMNS)}\n"
    config.report(about, text.rstrip("\n"), results=[each.model_dump() for each in figures])


def _measure(config: SearchBenchmark, size: Size, spread: Spread) -> Figures:
    passages, slots, dims = size.split("-")
    count = int(float(passages[:-1]) * _THOUSANDS[passages[-1]])
    vectors: dict[str, Any] = {"passages": count, "slots": int(slots), "dims": int(dims), "spread": spread}
    if spread == "real":
        vectors["folder"] = str(config.real)
    with TemporaryDirectory() as place:
        given = {"folder": str(Path(place) / "index"), "vectors": vectors}
        codes = Built.model_validate(_loop("prepare", **given, queries=config.queries, layout=config.beside))
        sys.stderr.write(f"{size} {spread}: written\n")
        used = config.exact_queries
        exact = _loop("exact", **given, queries=config.queries, used=used) if used else []
        ours = _ours(config, given)
        hybrid = _hybrid(config, given) if config.hybrid else None
        asked = {"queries": config.queries}
        peers = [found for name in config.peers if (found := _peer(name, **given, **asked)) is not None]
    return Figures(
        case=f"{size}, {spread}",
        codes=codes,
        exact_goal=size == _EXACT_GOAL_FOR,
        goal=GOALS.get(size),
        exact=exact,
        candidates=[ours, *peers],
        hybrid=hybrid,
    )


def _ours(config: SearchBenchmark, given: dict[str, Any]) -> Candidates:
    built = Built.model_validate(_loop("build", folder=given["folder"]))
    # The last is the exact scan, in a process that holds nothing else.
    budgets = [*_BUDGETS, given["vectors"]["passages"]] if config.exact_queries else list(_BUDGETS)
    found = _loop("candidates", **given, budgets=budgets, queries=config.queries)
    sys.stderr.write("ours: done\n")
    return Candidates.model_validate(found).model_copy(update={"built": built})


def _hybrid(config: SearchBenchmark, given: dict[str, Any]) -> Hybrid:
    words = _loop("build_bm25", folder=given["folder"])
    found = _loop("hybrid", **given, queries=config.queries)
    return Hybrid.model_validate({**found, "words": words})


def _loop(name: str, **arguments: object) -> Any:
    return in_child("benchmarks.search.loops", name, **arguments)


def _peer(name: str, **arguments: object) -> Candidates | None:
    """Return the figures of a library, or None if it fails: the figures of the others took hours."""
    try:
        found = Candidates.model_validate(in_child("benchmarks.search.peers", name, **arguments))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{name}: left out: it ended with status {error.returncode}\n")
        return None
    sys.stderr.write(f"{name}: done\n")
    return found


if __name__ == "__main__":
    run(SearchBenchmark, main)
