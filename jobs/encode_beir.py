"""Encode a collection into an index on Ray."""

from __future__ import annotations

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.encode import EncodeJob, EncodeSummary


def main(config: EncodeJob) -> None:
    """Encode and print the summary."""
    from diffretriever.pipelines.encode import encode_collection

    print(describe(encode_collection(config)))


def describe(summary: EncodeSummary) -> str:
    """Return the summary as text, including everything that was skipped."""
    rows = counted(summary.rows, "passages")
    lines = [f"{summary.index}: {rows}, {summary.encoded:,} encoded now in {summary.seconds:.0f} s"]
    if summary.steady_rate:
        lines[0] += f" ({summary.steady_rate:.1f} passages/s once running)"
    if summary.device_share is not None and summary.peak_memory is not None:
        share, memory = f"{summary.device_share:.0%}", f"{summary.peak_memory / 2**30:.1f} GiB"
        lines.append(f"  devices computed {share} of the time; peak memory of an encoder {memory}")
    if summary.chunk is not None:
        lines.append(f"  documents of more than {summary.chunk:,} tokens are split into passages ID#1, ID#2, …")
    if summary.already_there:
        lines.append(f"  {summary.already_there:,} unchanged, not encoded again")
    if summary.skipped:
        lines.append(f"  {summary.skipped:,} skipped: the index has another text for the id")
    if summary.replaced:
        lines.append(f"  {summary.replaced:,} replaced")
    if summary.deleted:
        lines.append(f"  {summary.deleted:,} deleted: no longer in the collection")
    if summary.bad:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.bad_reasons.items()))
        lines.append(f"  {counted(summary.bad, 'bad records')} written to {summary.quarantine}: {kinds}")
    return "\n".join([*lines, f"  retriever fingerprint {summary.fingerprint}"])


if __name__ == "__main__":
    run(EncodeJob, main, absolute=("index",))
