"""Random checkpoints of every family, written and loaded once."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.testing import FAMILIES
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import BackboneOf, FolderOf


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The folder of a family's random checkpoint: not to be changed."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in FAMILIES:
        write_random_checkpoint(name, root / name)
    return lambda name: root / name


@pytest.fixture(scope="session")
def adapter_of(folder_of: FolderOf, tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The folder of an adapter for a family's random checkpoint: not to be changed."""
    root = tmp_path_factory.mktemp("adapters")
    return cache(lambda name: write_random_adapter(folder_of(name), root / name))


@pytest.fixture(scope="session")
def backbone_of(folder_of: FolderOf) -> BackboneOf:
    """The float32 backbone of a family, on the CPU."""
    loaded = {name: load_backbone(folder_of(name), device="cpu") for name in FAMILIES}
    return loaded.__getitem__


@pytest.fixture(scope="session")
def packed_of(folder_of: FolderOf) -> BackboneOf:
    """The same, with texts in one row."""
    return cache(lambda name: load_backbone(folder_of(name), device="cpu", attention="packed"))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backbone(family: str, backbone_of: BackboneOf) -> Backbone:
    return backbone_of(family)


@pytest.fixture
def copied(family: str, copy_of: FolderOf) -> Path:
    return copy_of(family)


@pytest.fixture
def copy_of(folder_of: FolderOf, tmp_path: Path) -> FolderOf:
    """A copy of a family's checkpoint, to be changed."""
    return lambda name: Path(shutil.copytree(folder_of(name), tmp_path / f"copy of {name}"))


@pytest.fixture
def adapter_copy_of(adapter_of: FolderOf, tmp_path: Path) -> FolderOf:
    """A copy of an adapter for a family, to be changed."""
    return lambda name: Path(shutil.copytree(adapter_of(name), tmp_path / f"adapter of {name}"))
