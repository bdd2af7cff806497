"""From an index and queries to the pruning curve: `curve.md`, `curve.png`, `curve.json`.

Nothing in these files depends on when or where they are made.
"""

from __future__ import annotations

import numpy as np

from diffretriever.analysis.prune_figure import draw_pruning
from diffretriever.analysis.prune_page import prune_page
from diffretriever.analysis.prune_points import curve_points, kept_by
from diffretriever.analysis.prune_source import PruneSource, open_source
from diffretriever.evaluation.measures import parse_measures
from diffretriever.files import write_bytes, write_text
from diffretriever.index.pruned import write_pruned
from schemas.prune import PruneReport, PruneSlotsJob


def prune_slots(job: PruneSlotsJob, command: str) -> PruneReport:
    """Write the curve into the job's output folder, each file whole or not at all; return what is in the JSON.

    All vectors of the index are held in memory, in fp16 and once more in fp32.

    Raises:
        ValueError: no such sweep, index, budget, split or measure, a number to keep that prunes nothing, or an index
            where the pruned one is to be.
    """
    parse_measures([job.measure])
    source = open_source(job)
    manifest = source.index.manifest
    most = int(np.diff(source.offsets).max())
    report = PruneReport(
        index=source.index.uri,
        retriever=manifest.title,
        fingerprint=manifest.fingerprint,
        queries=len(source.qrels),
        query_budget=source.query_budget,
        passage_budget=most,
        passages=len(source.passage_ids),
        measure=job.measure,
        points=tuple(curve_points(source, _kept(job, source, most), job.measure)),
        command=command,
        # Where a report lies is no part of it: the same sweeps give the same bytes anywhere.
        config=job.model_dump(mode="json", exclude={"output", "pruned"}),
    )
    if job.pruned is not None:
        write_pruned(source.index, kept_by(job.rule, source, job.keep[0]), job.pruned)
    write_bytes(job.output / "curve.png", draw_pruning(report))
    write_text(job.output / "curve.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "curve.md", prune_page(report))
    write_text(job.output / "prune_slots.yaml", job.to_yaml())
    return report


def _kept(job: PruneSlotsJob, source: PruneSource, most: int) -> tuple[int, ...]:
    """Return the numbers to keep, ascending; default: powers of two below the most slots of a passage."""
    kept = tuple(sorted(set(job.keep))) or tuple(2**n for n in range(most.bit_length()) if 2**n < most)
    if not kept or kept[-1] >= most:
        raise ValueError(
            f"{source.index.uri} has passages of {most} slots at most: --keep must be below that, and an index of one "
            "slot cannot be pruned"
        )
    return kept
