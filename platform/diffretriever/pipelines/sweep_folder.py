"""What a sweep's folder says of itself, and the refusal of a folder that holds another sweep."""

from __future__ import annotations

import yaml

from diffretriever.budgets.outcomes import MANIFEST_FILE, read_manifest
from diffretriever.files import write_text
from schemas.budget import Budget
from schemas.manifest import IndexManifest
from schemas.selection import encoder_fingerprint
from schemas.sweep import SweepManifest
from schemas.sweep_job import RETRIEVER_FILE, SweepJob

NO_BUDGET = Budget(1, 1)
"""Stands for any budget in what all cells of a sweep share."""
_JOB = "sweep.yaml"


def begin_sweep(job: SweepJob, collection: str, encoder: IndexManifest, command: str) -> None:
    """Write what the sweep is: its job, its retriever and its manifest.

    Args:
        job: splits and modes filled in.
        collection: its name.
        encoder: manifest of the retriever with `NO_BUDGET`, precision filled in.
        command: the command line.

    Raises:
        ValueError: the folder holds another sweep; the message names what differs.
    """
    manifest = SweepManifest(
        collection=collection,
        retriever=encoder.title.removesuffix(f" {NO_BUDGET}"),
        fingerprint=encoder_fingerprint(encoder),
        query_budgets=job.query_budgets,
        passage_budgets=job.passage_budgets,
        modes=job.modes,
        measures=job.measures,
        splits=job.splits,
        command=command,
    )
    _refuse_another(job, manifest)
    write_text(job.output / RETRIEVER_FILE, yaml.safe_dump(encoder.retriever.model_dump(mode="json"), sort_keys=False))
    write_text(job.output / _JOB, job.to_yaml())
    write_text(job.output / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")


def _refuse_another(job: SweepJob, manifest: SweepManifest) -> None:
    """Raise `ValueError` where the folder holds the sweep of something else; another grid of the same is no other."""
    if not (job.output / MANIFEST_FILE).is_file():
        return
    before = read_manifest(job.output)
    settings = yaml.safe_load((job.output / _JOB).read_text("utf-8"))
    pairs = {
        "collection": (before.collection, manifest.collection),
        "retriever": (f"{before.retriever} ({before.fingerprint})", f"{manifest.retriever} ({manifest.fingerprint})"),
        "top_k": (settings["top_k"], job.top_k),
        "exclude_self": (settings["exclude_self"], job.exclude_self),
    }
    if before.fingerprint == manifest.fingerprint:
        # The same weights may lie elsewhere by now.
        del pairs["retriever"]
    differing = [f"{name}: {theirs} != {ours}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    if differing:
        listed = "\n  ".join(differing)
        raise ValueError(
            f"{job.output} holds another sweep (that one != this one):\n  {listed}\ngive another --output, or remove it"
        )
