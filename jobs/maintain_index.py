"""Delete passages from an index, go back to an earlier version, or compact it."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.inspect import MaintainJob


def main(config: MaintainJob) -> None:
    """Run the requested action and print the state of the index."""
    from diffretriever.index.table import PassageIndex
    from diffretriever.index.writer import WriterLock

    if not config.delete and not config.compact and config.restore is None:
        raise ValueError("nothing to do: pass --delete, --restore or --compact")
    with WriterLock(config.index):
        if config.restore is not None:
            PassageIndex.restore(config.index, config.restore)
            print(f"back at version {config.restore}")
        index = PassageIndex.open(config.index)
        if config.delete:
            print(f"deleted {index.delete(config.delete):,} of {counted(len({*config.delete}), 'ids')}")
        if config.compact:
            from diffretriever.pipelines.accelerate import accelerate_index, has_files
            from diffretriever.pipelines.compact import compact_index

            compact_index(index, config.keep_versions)
            # Merged fragments have new files.
            if has_files(index):
                accelerate_index(index)
            print(f"compacted to {counted(index.contents().fragments, 'fragments')}")
        print(f"{config.index}: {counted(len(index), 'passages')}, version {index.version}")


if __name__ == "__main__":
    run(MaintainJob, main)
