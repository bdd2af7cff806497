"""Make an index fast to search: 8-bit codes, and a candidate index where asked for."""

from __future__ import annotations

from _entry import run

from schemas.jobs import AccelerateJob


def main(config: AccelerateJob) -> None:
    """Build what is missing and say what there is."""
    from diffretriever.search.accelerate import accelerate

    done = accelerate(config)
    print(f"{config.index}: codes made for {done.fragments} fragments that had none, {done.bytes / 1e6:,.1f} MB in all")
    if done.candidates is not None:
        chosen = done.candidates
        print(
            f"candidates: {chosen.proposer}, search budget {chosen.search_budget:,} of {chosen.passages:,} passages, "
            f"recall@{chosen.top_k} {chosen.measured:.4f} on {chosen.sample} sampled queries (target {chosen.target})"
        )


if __name__ == "__main__":
    run(AccelerateJob, main)
