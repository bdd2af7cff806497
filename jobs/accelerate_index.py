"""Make an index fast to search: codes, postings, and a candidate index if asked to."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.base import counted


def main(config: AccelerateJob) -> None:
    """Write missing files and list all files."""
    from diffretriever.pipelines.accelerate import make_files
    from diffretriever.search.accelerate import accelerate

    done = accelerate(config, make_files)
    for kind, kept in done.files.items():
        made = f"{kind} made for {counted(kept.made, 'fragments')} that had none"
        print(f"{config.index}: {made}, {kept.bytes / 1e6:,.1f} MB in all")
    if done.only_streams:
        print(
            "searches still read the whole table, because codes of means need a candidate index: "
            f"`python jobs/accelerate_index.py --index {config.index} --candidates`"
        )
    if done.candidates is not None:
        chosen = done.candidates
        print(
            f"candidates: search budget {chosen.search_budget:,} of {chosen.passages:,} passages, "
            f"recall@{chosen.top_k} {chosen.measured:.4f} on {chosen.sample} sampled queries (target {chosen.target})"
        )


if __name__ == "__main__":
    run(AccelerateJob, main, absolute=("index",))
