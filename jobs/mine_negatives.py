"""Mine hard negatives for training queries from an index."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob


def main(config: MineNegativesJob) -> None:
    """Mine and print the counts."""
    from diffretriever.pipelines.mining import mine_negatives

    print(describe(config, mine_negatives(config)))


def describe(job: MineNegativesJob, mined: MinedNegatives) -> str:
    """Return the outcome as lines for a person."""
    queries, negatives = counted(mined.queries, "queries"), counted(mined.negatives, "negatives")
    lines = [
        f"{job.output}: {queries} with {negatives} by {mined.retriever}, in {mined.seconds:.0f} s",
        f"  {counted(mined.positives_found, 'queries')} with a positive in the top {job.depth:,}",
    ]
    if mined.incomplete:
        lines.append(f"  {counted(mined.incomplete, 'queries')} with fewer than {counted(job.negatives, 'negatives')}")
    return "\n".join(lines)


if __name__ == "__main__":
    run(MineNegativesJob, main, absolute=("index",))
