"""What the encode job prints at its end."""

from __future__ import annotations

from importlib import import_module

import pytest

from diffretriever.schemas.encode import EncodeSummary

SUMMARY = EncodeSummary(
    index="i",
    fingerprint="f",
    encoded=1_000,
    already_there=0,
    skipped=0,
    replaced=0,
    deleted=0,
    bad=0,
    bad_reasons={},
    quarantine=None,
    rows=1_000,
    seconds=10,
    steady_rate=200,
)


@pytest.mark.parametrize(
    ("used", "lines"),
    [
        ({}, []),
        (
            {"device_share": 0.934, "peak_memory": 30 << 30},
            ["  the encoders' devices computed 93% of the time; an encoder took 30.0 GiB at the most"],
        ),
    ],
)
def test_what_devices_did_is_said(used: dict[str, object], lines: list[str], jobs_path: None) -> None:
    said = import_module("encode_beir").describe(SUMMARY.model_copy(update=used)).splitlines()
    first = "i: 1,000 passages, 1,000 encoded now in 10 s (200.0 passages/s once running)"
    assert said == [first, *lines, "  retriever fingerprint f"]
