"""Make an index fast to search: codes, postings, and a candidate index if asked to."""

from __future__ import annotations

from _entry import absolute_place, run

from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.base import counted


def main(config: AccelerateJob) -> None:
    """Write missing files and list all files."""
    from diffretriever.pipelines.accelerate import make_files
    from diffretriever.search.accelerate import accelerate

    config = config.model_copy(update={"index": absolute_place(config.index, "--index")})
    done = accelerate(config, make_files)
    for kind, files in done.files.items():
        built = f"{kind} built for {counted(files.built, 'fragments')} without them"
        print(f"{config.index}: {built}, {files.bytes / 1e6:,.1f} MB in all")
    if done.only_streams:
        print(
            "searches will read the whole table, since codes of means only serve candidates and none are calibrated: "
            f"`python jobs/accelerate_index.py --index {config.index} --candidates`"
        )
    if done.candidates is not None:
        chosen = done.candidates
        print(
            f"candidates: search budget {chosen.search_budget:,} of {chosen.passages:,} passages, "
            f"recall@{chosen.top_k} {chosen.measured:.4f} on {chosen.sample} sampled queries (target {chosen.target})"
        )


if __name__ == "__main__":
    run(AccelerateJob, main)
