"""Search an index for many queries at once on Ray."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.search import BatchSearchJob


def main(config: BatchSearchJob) -> None:
    """Search and print the paths of the runs."""
    from diffretriever.pipelines.batch_search import search_batch

    summary = search_batch(config)
    rate = summary.queries / summary.seconds
    done = f"{counted(summary.queries, 'queries')} over {counted(summary.passages, 'passages')}"
    print(f"{done} in {summary.seconds:.0f} s ({rate:.1f}/s)")
    if summary.parts_found:
        print(f"  {counted(summary.parts_found, 'parts')} searched by an earlier attempt")
    for mode, path in summary.runs.items():
        print(f"  {mode}: {path}")


if __name__ == "__main__":
    run(BatchSearchJob, main, absolute=("index",))
