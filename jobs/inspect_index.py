"""Describe an index, and check it."""

from __future__ import annotations

import yaml
from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.inspect import IndexReport, InspectJob, Verification

_VERSIONS_SHOWN = 20


def main(config: InspectJob) -> None:
    """Print a description of the index; exit with 1 if a requested check finds a problem."""
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.inspection import inspect

    report = inspect(PassageIndex.open(config.index), check=config.verify)
    print(report.model_dump_json(indent=2) if config.json_output else describe(report))
    if report.verification is not None and report.verification.problems:
        raise SystemExit(1)


def describe(report: IndexReport) -> str:
    """Return the report as YAML, with the latest versions and the problems found."""
    shown = report.model_dump(mode="json", exclude={"versions", "verification"})
    manifest = shown.pop("manifest")
    versions = report.versions[-_VERSIONS_SHOWN:]
    if older := len(report.versions) - len(versions):
        shown["older_versions"] = older
    shown["versions"] = [
        f"{v.version}: {v.time:%Y-%m-%d %H:%M:%S} UTC, {v.change}, {v.rows} rows (+{v.added} "
        f"-{'?' if v.removed is None else v.removed}), {counted(v.fragments, 'fragments')}"
        for v in versions
    ]
    shown["manifest"] = manifest
    if report.verification is not None:
        shown["verification"] = outcome(report.verification)
    return str(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120)).rstrip()


def outcome(verification: Verification) -> dict[str, object]:
    """Return what was checked, then each kind of problem with its count and first location."""
    checked = f"{verification.rows:,} passages, {verification.vectors:,} vectors, derived files"
    if verification.without_checksums:
        checked += f"; {verification.without_checksums:,} files have no checksum"
    problems = {f"{p.kind} ({p.total:,})": p.first for p in verification.problems}
    return {"checked": checked, "problems": problems or "none"}


if __name__ == "__main__":
    run(InspectJob, main)
