"""Mine hard negatives for training queries from an index."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob


def main(config: MineNegativesJob) -> None:
    """Mine and print the counts."""
    from diffretriever.pipelines.mining import mine_negatives

    print(describe(config, mine_negatives(config)))


def describe(job: MineNegativesJob, made: MinedNegatives) -> str:
    """Return the outcome as lines for a person."""
    queries, negatives = counted(made.queries, "queries"), counted(made.negatives, "negatives")
    lines = [
        f"{job.output}: {queries} with {negatives} by {made.retriever}, in {made.seconds:.0f} s",
        f"  {counted(made.positives_found, 'queries')} with a positive in the top {job.depth:,}",
    ]
    if made.incomplete:
        lines.append(f"  {counted(made.incomplete, 'queries')} with fewer than {counted(job.negatives, 'negatives')}")
    return "\n".join(lines)


if __name__ == "__main__":
    run(MineNegativesJob, main, absolute=("index",))
