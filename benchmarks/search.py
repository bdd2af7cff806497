"""Dense search: exact scans and candidate indexes, ours and others', in one run: time, recall, build, size, memory."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from pydantic import Field, PositiveInt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from benchmarks._common import header, in_child  # noqa: E402  (found through it)
from benchmarks._search_figures import CANDIDATE_COLUMNS, EXACT_COLUMNS, Built, Candidates, Figures  # noqa: E402
from schemas.accelerate import ProposerName  # noqa: E402
from schemas.settings import JobConfig  # noqa: E402

Size: TypeAlias = Literal["10k-16-384", "100k-16-384", "100k-4-384", "10k-4-3584", "100k-4-3584", "1m-4-384"]
Spread: TypeAlias = Literal["clustered", "independent"]
_PASSAGES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
_GOALS_FOR: Size = "100k-16-384"
_BUDGETS = (200, 1000)


class SearchBenchmark(JobConfig):
    """Measure dense search on made-up vectors, one query at a time, on one core."""

    sizes: tuple[Size, ...] = (_GOALS_FOR,)
    """Passages, K_p and dimensions; K_q is 4."""
    spread: tuple[Spread, ...] = ("clustered",)
    """`clustered`: slots of a passage are alike, and so are passages. `independent`: nothing is like anything."""
    queries: int = Field(default=100, ge=10)
    """For candidates."""
    exact_queries: PositiveInt = 12
    """For exact searches, which are slower."""
    proposers: tuple[ProposerName, ...] = ("mean", "plaid", "faiss_tokens")
    """Candidate indexes of ours. That of `lancedb_tokens` takes many minutes to build."""
    peers: bool = True
    """Indexes searched without this project as well: faiss, and LanceDB where `lancedb_tokens` has made its index."""
    fast_plaid_python: Path | None = None
    """Interpreter of an environment that has fast-plaid, which pins another torch; left out if not given."""
    fast_plaid_passages: PositiveInt = 20_000
    """Passages that fast-plaid gets: it takes minutes to index so many."""
    quick: bool = False
    """10,000 passages and 20 queries."""
    output: Path | None = None
    """JSON file for all figures."""


def main(config: SearchBenchmark) -> None:
    """Run every case, print its tables, write JSON if asked to."""
    from diffretriever.evaluation.tables import format_table

    # Of Lance and numba; `in_child` sees to those of OpenMP.
    os.environ.update(LANCE_CPU_THREADS="1", NUMBA_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    if config.quick:
        small = {"sizes": ("10k-16-384",), "queries": 20, "exact_queries": 5}
        config = config.model_copy(update=small)
    about = header()
    figures = [_measure(config, size, spread) for size in config.sizes for spread in config.spread]
    print("\n".join(f"{name}: {text}" for name, text in about.items()))
    for each in figures:
        print(f"\n{each.case}; codes: {each.codes.seconds:.1f} s, {each.codes.mb:.0f} MB\n")
        print(format_table(each.exact_rows(), EXACT_COLUMNS))
        print("\n" + format_table(each.candidate_rows(), CANDIDATE_COLUMNS))
    if config.output is not None:
        results = [each.model_dump() for each in figures]
        content = {**about, "settings": config.model_dump(mode="json"), "results": results}
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _measure(config: SearchBenchmark, size: Size, spread: Spread) -> Figures:
    passages, slots, dims = size.split("-")
    vectors = {"passages": _PASSAGES[passages], "slots": int(slots), "dims": int(dims), "spread": spread}
    with TemporaryDirectory() as place:
        given = {"folder": str(Path(place) / "index"), "vectors": vectors}
        codes = Built.model_validate(_loop("prepare", **given, queries=config.queries))
        sys.stderr.write(f"{size} {spread}: written\n")
        exact = in_child(
            "benchmarks._search_exact", "exact", **given, queries=config.queries, used=config.exact_queries
        )
        ours = [_ours(config, name, given) for name in _proposers(config)]
        peers = [Candidates.model_validate(_peer(name, **given, **told)) for name, told in _peers(config)]
    return Figures(
        case=f"{size}, {spread}",
        codes=codes,
        goals=size == _GOALS_FOR,
        exact=exact,
        candidates=[*ours, *peers],
    )


def _ours(config: SearchBenchmark, name: str, given: dict[str, Any]) -> Candidates:
    built = Built.model_validate(_loop("build", folder=given["folder"], proposer=name))
    # One of them shows the exact scan as well, in a process that holds nothing else.
    budgets = [*_BUDGETS, given["vectors"]["passages"]] if name == "mean" else list(_BUDGETS)
    found = _loop("candidates", **given, proposer=name, budgets=budgets, queries=config.queries)
    sys.stderr.write(f"{name}: done\n")
    return Candidates.model_validate(found).model_copy(update={"built": built})


def _proposers(config: SearchBenchmark) -> list[ProposerName]:
    return [name for name in config.proposers if name != "faiss_tokens" or _has_faiss()]


def _peers(config: SearchBenchmark) -> list[tuple[str, dict[str, Any]]]:
    asked = {"queries": config.queries}
    python = {"python": str(config.fast_plaid_python), "passages": config.fast_plaid_passages}
    wanted: list[tuple[str, dict[str, Any], bool]] = [
        ("lancedb", asked, config.peers and "lancedb_tokens" in config.proposers),
        ("faiss", asked, config.peers and _has_faiss()),
        ("fast_plaid", {**asked, **python}, config.fast_plaid_python is not None),
    ]
    return [(name, told) for name, told, is_wanted in wanted if is_wanted]


def _has_faiss() -> bool:
    return find_spec("faiss") is not None


def _loop(name: str, **arguments: object) -> Any:
    return in_child("benchmarks._search_loops", name, **arguments)


def _peer(name: str, **arguments: object) -> Any:
    return in_child("benchmarks._search_peers", name, **arguments)


if __name__ == "__main__":
    main(SearchBenchmark.from_command_line())
