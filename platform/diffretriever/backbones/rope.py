"""The rotary base: read from old and new spellings of config.json, and checked in the loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROPE_FIELDS = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})


def rope_base(config: Mapping[str, Any], file: Path) -> float:
    """Return the base of plain rotary embeddings.

    Raises:
        ValueError: No base, two different ones, or any kind of scaling.
    """
    spellings: list[dict[str, Any]] = [{"rope_theta": config.get("rope_theta")}]
    for name in ("rope_scaling", "rope_parameters"):
        settings = config.get(name) or {}
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default" or not settings.keys() <= {"rope_type", "type", "rope_theta"}:
            raise ValueError(f"{file}: field '{name}' is {settings!r}; only plain rotary embeddings are supported.")
        spellings.append(settings)
    bases = {float(settings["rope_theta"]) for settings in spellings if settings.get("rope_theta") is not None}
    if len(bases) != 1:
        raise ValueError(f"{file}: exactly one rotary base 'rope_theta' is needed, found {sorted(bases)}.")
    return bases.pop()


def plain_rope(base: float) -> dict[str, Any]:
    """Return the setting in the spelling of transformers 5, where a bare `rope_theta` could be dropped."""
    return {"rope_type": "default", "rope_theta": base}


def assert_rope_base(inv_freq: torch.Tensor, base: float) -> None:
    """Check that a loaded model rotates with the checkpoint's base."""
    size = 2 * len(inv_freq)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    expected = base**-exponents
    assert torch.allclose(inv_freq.double().cpu(), expected, rtol=1e-5, atol=0), (
        f"the loaded model does not rotate with base {base}"
    )
