"""The indexes of a sweep, one for each K_p: encoded one by one, or by the same forward passes if slots are nested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from diffretriever.collections import Collection
from diffretriever.files import write_text
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from schemas.budget import Budget
from schemas.jobs import EncodeJob, RayConfig
from schemas.sweep_job import RETRIEVER_FILE, SweepJob

_FINISHED = "finished.json"


def encode_indexes(
    job: SweepJob, collection: Collection, *, nested: bool, say: Callable[[str], None]
) -> dict[int, PassageIndex]:
    """Return the index of each K_p, complete. Their K_q, which no stored vector depends on, is 1."""
    places = {budget: job.output / "indexes" / f"p{budget}" for budget in job.passage_budgets}
    state = json.dumps({"source": collection.source_state()})
    missing = {budget: place for budget, place in places.items() if not _is_finished(place, state)}
    for together in [missing] if nested and missing else [{budget: missing[budget]} for budget in missing]:
        say(f"index of K_p = {', '.join(str(budget) for budget in together)}")
        _encode(job, together)
        for place in together.values():
            write_text(place / _FINISHED, f"{state}\n")
    return {budget: PassageIndex.open(str(place)) for budget, place in places.items()}


def _is_finished(place: Path, state: str) -> bool:
    finished = place / _FINISHED
    return finished.is_file() and finished.read_text("utf-8").strip() == state


def _encode(job: SweepJob, places: dict[int, Path]) -> None:
    largest = max(places)
    encode_collection(
        EncodeJob(
            **job.model_dump(include=set(RayConfig.model_fields)),
            collection=job.collection,
            retriever=str(job.output / RETRIEVER_FILE),
            index=str(places[largest]),
            budget=Budget(1, largest),
            on_bad_input=job.on_bad_input,
        ),
        {budget: str(place) for budget, place in places.items() if budget < largest},
    )
