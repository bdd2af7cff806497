"""Where a job of some checkout spends its time: `python stages.py CHECKOUT JOB FLAGS…` prints seconds by stage as JSON.

It runs with the checkout's files alone, whatever else is on the path.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

_SEARCH_IMPORTS = (
    "diffretriever.search.bm25",
    "diffretriever.search.neural",
    "diffretriever.encoders.pooled",
    "diffretriever.encoders.masked",
    "diffretriever.backbones.bert",
)
IMPORTS = {
    "encode_beir": ("diffretriever.pipelines.encode",),
    "search": _SEARCH_IMPORTS,
    "evaluate": (*_SEARCH_IMPORTS, "diffretriever.evaluation.evaluate", "diffretriever.evaluation.report"),
}
"""What a job loads in its own process whatever its flags."""
STAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "encode_beir": {
        "Ray's start": ("diffretriever.pipelines.cluster:connect",),
        "describing the encoder": (
            "diffretriever.pipelines.executor:LocalExecutor.manifest",
            "diffretriever.pipelines.ray_executor:RayExecutor.manifest",
        ),
        "choosing": ("diffretriever.pipelines.encode:scan",),
        "encoding": ("diffretriever.pipelines.index_writer:IndexWriter.write",),
        "joining, accelerating": (
            "diffretriever.pipelines.index_writer:compact_index",
            "diffretriever.pipelines.index_writer:accelerate_index",
        ),
        "Ray's end": ("ray:shutdown",),
    },
    "search": {
        "opening, loading weights": ("diffretriever.search:open_searcher",),
        "searching": ("diffretriever.search.searcher:Searcher.search",),
    },
    "evaluate": {
        "opening, loading weights": ("diffretriever.evaluation.evaluate:open_searcher",),
        "searching": ("diffretriever.search.searcher:Searcher.search",),
        "measuring": ("diffretriever.evaluation.evaluate:evaluate",),
        "writing": ("diffretriever.evaluation.evaluate:write_run", "diffretriever.evaluation.evaluate:_write"),
    },
}
"""Job → stage → the functions that it is the time of; a checkout need not have all of them."""


def main(root: Path, job: str, flags: list[str]) -> None:
    """Run the job with its functions timed."""
    start = time.perf_counter()
    sys.path[:0] = [str(root), str(root / "platform"), str(root / "jobs")]
    spent: defaultdict[str, float] = defaultdict(float)
    for name in IMPORTS[job]:
        import_module(name)
    spent["imports"] = time.perf_counter() - start
    for stage, functions in STAGES[job].items():
        for place in functions:
            _time(place, stage, spent)
    sys.argv = [str(root / "jobs" / f"{job}.py"), *flags]
    runpy.run_path(sys.argv[0], run_name="__main__")
    spent["rest"] = time.perf_counter() - start - sum(spent.values())
    print(json.dumps(spent))


def _time(place: str, stage: str, spent: defaultdict[str, float]) -> None:
    module, _, path = place.partition(":")
    try:
        owner = import_module(module)
        *within, name = path.split(".")
        for each in within:
            owner = getattr(owner, each)
        function = getattr(owner, name)
    except (ImportError, AttributeError):
        return
    setattr(owner, name, _timed(function, stage, spent))


def _timed(function: Callable[..., Any], stage: str, spent: defaultdict[str, float]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[stage] += time.perf_counter() - start

    return timed


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
