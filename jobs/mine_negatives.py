"""Mine hard negatives for training queries from an index."""

from __future__ import annotations

from _entry import absolute_place, run

from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob


def main(config: MineNegativesJob) -> None:
    """Mine and print the counts."""
    from diffretriever.pipelines.mining import mine_negatives

    # Workers run in another directory.
    job = config.model_copy(update={"index": absolute_place(config.index, "--index")})
    print(describe(job, mine_negatives(job)))


def describe(job: MineNegativesJob, made: MinedNegatives) -> str:
    """Return the outcome as lines for a person."""
    found = f"{made.queries:,} queries with {made.negatives:,} negatives by {made.retriever}"
    lines = [
        f"{job.output}: {found}, in {made.seconds:.0f} s",
        f"  {made.positives_found:,} queries have a positive among their best {job.depth:,} passages",
    ]
    if made.incomplete:
        lines.append(f"  {made.incomplete:,} queries have fewer than {job.negatives:,} negatives")
    return "\n".join(lines)


if __name__ == "__main__":
    run(MineNegativesJob, main)
