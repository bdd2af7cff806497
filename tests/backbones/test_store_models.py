"""Checkpoints and adapters on an object store are fetched once per node."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.backbones.loader import load_backbone
from diffretriever.backbones.source import resolve_source
from diffretriever.core.files import write_bytes, write_text
from diffretriever.schemas.locations import StorePath


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fetched"


def put(folder: Path, uri: str) -> str:
    for file in folder.iterdir():
        write_bytes(f"{uri}/{file.name}", file.read_bytes())
    return uri


@pytest.fixture
def model(bucket: str, folder_of: Callable[[str], Path]) -> str:
    return put(folder_of("llada"), f"{bucket}/models/llada")


def test_a_checkpoint_on_a_store_has_the_same_digest(model: str, folder_of: Callable[[str], Path]) -> None:
    assert load_backbone(model).weights_digest == load_backbone(str(folder_of("llada"))).weights_digest
    with pytest.raises(ValueError, match=r"revision 'main' has no meaning for 's3://"):
        resolve_source(model, "main")


def test_a_model_is_fetched_once_and_again_after_a_change(model: str, cache: Path) -> None:
    folder = resolve_source(model)
    assert folder.parent == cache
    with patch("diffretriever.core.files.fetch_file", side_effect=AssertionError("it is here")):
        assert resolve_source(f"{model}/") == folder
    write_text(f"{model}/config.json", "{ }")
    newer = resolve_source(model)
    assert newer != folder
    assert (newer / "config.json").read_text() == "{ }"
    assert (folder / "config.json").read_text() != "{ }"


def test_without_weights_none_are_fetched(model: str) -> None:
    names = {file.name for file in resolve_source(model, weights=False).iterdir()}
    assert "config.json" in names
    assert not any(name.endswith(".safetensors") for name in names)
    # Nor what nothing here reads.
    write_text(f"{model}/code.py", "")
    write_text(f"{model}/onnx/config.json", "")
    assert not {"code.py", "onnx"} & {file.name for file in resolve_source(model).iterdir()}


def test_threads_wait_for_one_another(model: str, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(resolve_source, [model] * 4))
    assert len(found) == 1
    assert [path for path in cache.iterdir() if not path.name.startswith(".")] == list(found)
    assert not list(cache.glob("*.tmp"))


def test_a_fetch_that_is_cut_short_leaves_nothing(model: str, cache: Path) -> None:
    from diffretriever.core import files

    fetch = files.fetch_file

    def cut(place: StorePath, target: Path) -> None:
        fetch(place, target)
        if target.suffix == ".safetensors":
            raise ValueError("the store is gone")

    with patch("diffretriever.core.files.fetch_file", cut), pytest.raises(ValueError, match="the store is gone"):
        resolve_source(model)
    assert [path for path in cache.iterdir() if not path.name.endswith(".lock")] == []

    def change(place: StorePath, target: Path) -> None:
        fetch(place, target)
        write_text(f"{model}/config.json", "changed")

    with (
        patch("diffretriever.core.files.fetch_file", change),
        pytest.raises(ValueError, match="changed while it was fetched"),
    ):
        resolve_source(model)
    assert resolve_source(model).is_dir()
