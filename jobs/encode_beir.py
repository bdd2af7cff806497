"""Encode a collection into an index on Ray."""

from __future__ import annotations

from _entry import absolute_place, run

from diffretriever.schemas.base import counted
from diffretriever.schemas.encode import EncodeJob, EncodeSummary


def main(config: EncodeJob) -> None:
    """Encode and print the summary."""
    from diffretriever.pipelines.encode import encode_collection

    job = config.model_copy(update={"index": absolute_place(config.index, "--index")})
    print(describe(encode_collection(job)))


def describe(summary: EncodeSummary) -> str:
    """Return the summary as text, including everything that was skipped."""
    rows = counted(summary.rows, "passages")
    lines = [f"{summary.index}: {rows}, {summary.encoded:,} encoded now in {summary.seconds:.0f} s"]
    if summary.steady_rate:
        lines[0] += f" ({summary.steady_rate:.1f} passages/s once running)"
    if summary.device_share is not None and summary.peak_memory is not None:
        share, memory = f"{summary.device_share:.0%}", f"{summary.peak_memory / 2**30:.1f} GiB"
        lines.append(f"  the encoders' devices computed {share} of the time; an encoder took {memory} at the most")
    if summary.chunk is not None:
        lines.append(f"  a document of more than {summary.chunk:,} tokens is several passages: ID#1, ID#2, …")
    if summary.already_there:
        lines.append(f"  {summary.already_there:,} were there already, with the same text")
    if summary.skipped:
        lines.append(f"  {summary.skipped:,} are there with another text and were left as they are")
    if summary.replaced:
        lines.append(f"  {summary.replaced:,} were replaced")
    if summary.deleted:
        lines.append(f"  {summary.deleted:,} were deleted, as the collection no longer has them")
    if summary.bad:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.bad_reasons.items()))
        lines.append(f"  {counted(summary.bad, 'bad records')} set aside in {summary.quarantine}: {kinds}")
    return "\n".join([*lines, f"  retriever fingerprint {summary.fingerprint}"])


if __name__ == "__main__":
    run(EncodeJob, main)
