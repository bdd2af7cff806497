"""Store an index's vectors in a few bits a dimension."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.compress import CompressJob, CompressSummary


def main(config: CompressJob) -> None:
    """Compress and print the savings."""
    from diffretriever.pipelines.compress import compress_index

    print(describe(compress_index(config)))


def describe(summary: CompressSummary) -> str:
    """Return the summary as lines for a person."""
    head = f"{summary.index}: {counted(summary.passages, 'passages')} as {summary.codec}"
    if summary.written == 0 and summary.bytes_before == summary.bytes_after:
        return f"{head} already, {summary.bytes_after / 1e6:,.1f} MB"
    sizes = f"{summary.bytes_before / 1e6:,.1f} MB before, {summary.bytes_after / 1e6:,.1f} MB now"
    lines = [
        f"{head} in {summary.seconds:.0f} s, {sizes}",
        f"  codec {summary.digest}",
        "  the first compaction after an hour deletes the previous version, with its vectors",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(CompressJob, main, absolute=("index",))
