"""Rerank a TREC run with a masked diffusion backbone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.rerank import RerankJob

if TYPE_CHECKING:
    from diffretriever.collections import BadRecord, Passage


def main(job: RerankJob) -> None:
    """Rerank and print the result."""
    from diffretriever.rerank.run import rerank_run

    summary = rerank_run(job, _records(job))
    rate = f" ({summary.passages / summary.seconds:.1f} passages/s)" if summary.passages else ""
    queries, passages = counted(summary.queries, "queries"), counted(summary.passages, "passages")
    print(f"{job.output}: {queries}, {passages} scored now{rate}")
    if summary.resumed:
        print(f"  {counted(summary.resumed, 'queries')} scored by an earlier attempt")


def _records(job: RerankJob) -> Iterator[Passage | BadRecord]:
    from diffretriever.collections import Passage, open_collection

    if job.index is None:
        yield from open_collection(job.collection).records()
        return
    from diffretriever.index.table import PassageIndex

    for batch in PassageIndex.open(job.index).batches(["id", "title", "text"], 8192):
        yield from (Passage(**row) for row in batch.to_pylist())


if __name__ == "__main__":
    run(RerankJob, main)
