"""Tiny random checkpoints, written once."""

from __future__ import annotations

import pytest

from diffretriever.backbones.random_checkpoints import FAMILIES, write_random_checkpoint
from tests.training.trainer_cases import FolderOf


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The folder of a family's random checkpoint: not to be changed."""
    root = tmp_path_factory.mktemp("training-checkpoints")
    for name in FAMILIES:
        write_random_checkpoint(name, root / name, hidden_size=32)
    return lambda name: root / name
