"""How the paper prints its tables (columns, bold, signs of significance): a layout for each, in YAML files here."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TypeAlias

import yaml

from diffretriever.studies.reproduction.config import PublishedTable
from diffretriever.studies.reproduction.layouts.compression import CompressionLayout
from diffretriever.studies.reproduction.layouts.systems import SystemsLayout, plain_layout

Layout: TypeAlias = SystemsLayout | CompressionLayout

KINDS: dict[str, type[Layout]] = {"systems": SystemsLayout, "compression": CompressionLayout}


def layout_of(table: PublishedTable) -> Layout:
    """Return the layout of a table; one that the paper does not print gets a plain one."""
    return _read(table.id) or plain_layout(table)


@cache
def _read(name: str) -> Layout | None:
    file = files("diffretriever.studies.reproduction.layouts") / f"{name}.yaml"
    if not file.is_file():
        return None
    values = yaml.safe_load(file.read_text("utf-8"))
    return KINDS[values.get("kind", "systems")].model_validate(values)
