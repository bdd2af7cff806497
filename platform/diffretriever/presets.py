"""Named retrievers, and retriever descriptions in YAML files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from schemas.base import suggest
from schemas.budget import Budget
from schemas.retriever import RETRIEVER_ADAPTER, Bm25Retriever, MaskedRetriever, NeuralRetriever, RetrieverConfig


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(files("diffretriever").joinpath("presets.yaml").read_text("utf-8")))


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return list(_presets())


def load_retriever(
    name: str, backbone: str | None = None, budget: Budget | None = None, adapter: str | None = None
) -> RetrieverConfig:
    """Return the retriever called `name`, or described by the YAML file `name`, with parts replaced where given.

    Raises:
        ValueError: no such preset or file, an unknown key, or a part that this method does not have.
    """
    config = _validate(_read(name), name)
    if backbone is not None or adapter is not None:
        config = with_places(config, backbone, adapter)
    if budget is not None:
        if not isinstance(config, MaskedRetriever):
            raise ValueError(f"the {config.method} method has no slots: leave --budget out")
        config = config.model_copy(update={"budget": budget})
    return config


def with_places(config: RetrieverConfig, backbone: str | None, adapter: str | None) -> NeuralRetriever:
    """Return `config` with its backbone or adapter, where given, taken from another folder or hub id.

    Raises:
        ValueError: BM25 has neither.
    """
    if isinstance(config, Bm25Retriever):
        raise ValueError("BM25 has no backbone: leave --backbone and --adapter out")
    places: dict[str, str | None] = {}
    if backbone is not None:
        places |= {"source": _place(backbone), "revision": None}
    if adapter is not None:
        places |= {"adapter": _place(adapter), "adapter_revision": None}
    return config.model_copy(update={"backbone": config.backbone.model_copy(update=places)})


def _place(source: str) -> str:
    # Workers run in other directories, so a local folder must be absolute.
    return str(Path(source).absolute()) if Path(source).is_dir() else source


def _read(name: str) -> Any:
    if name in _presets():
        return _presets()[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"unknown retriever '{name}'.{suggest(name, _presets())} Or give a .yaml file.")
    if not path.is_file():
        raise ValueError(f"no file {name}: give a YAML file that describes a retriever, or one of {preset_names()}")
    return yaml.safe_load(path.read_text("utf-8"))


def _validate(values: Any, name: str) -> RetrieverConfig:
    try:
        return RETRIEVER_ADAPTER.validate_python(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{name} does not describe a retriever: {problems}") from error
