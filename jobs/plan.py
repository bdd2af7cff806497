"""Estimate the size, time and cost of an index before you create it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _entry import run

from diffretriever.studies.planning_config import PlanJob

if TYPE_CHECKING:
    from diffretriever.studies.planning import Counted, Measured


def main(config: PlanJob) -> None:
    """Count and measure as requested, and print the plan."""
    from diffretriever.studies.planning import make_plan, page

    counted = _count(config.collection) if config.collection is not None else None
    measured = _measure(config, counted) if config.measure and counted is not None else []
    plan = make_plan(config, counted, measured)
    print(plan.model_dump_json(indent=2) if config.json_output else page(plan))


def _count(source: str) -> Counted:
    from diffretriever.collections import Passage, open_collection
    from diffretriever.studies.planning import count

    return count(record for record in open_collection(source).records() if isinstance(record, Passage))


def _measure(config: PlanJob, counted: Counted) -> list[Measured]:
    from diffretriever.encoders import load_encoder
    from diffretriever.studies.planning import measure, retrievers

    return [measure(load_encoder(retriever), counted.sample) for retriever in retrievers(config)]


if __name__ == "__main__":
    run(PlanJob, main)
