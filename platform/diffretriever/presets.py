"""Named configs in the package's YAML files, and configs in YAML files of the user's own."""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from schemas.base import suggest
from schemas.budget import Budget
from schemas.retriever import (
    RETRIEVER_ADAPTER,
    Bm25Retriever,
    MaskedRetriever,
    NeuralRetriever,
    RetrieverConfig,
)

C = TypeVar("C")


class Presets(Generic[C]):
    """The named configs of one kind."""

    def __init__(self, kind: str, file: str, adapter: TypeAdapter[C]) -> None:
        """`kind` is what one is called in messages, `file` the YAML file in this package."""
        self._kind = kind
        self._file = file
        self._adapter = adapter

    @cached_property
    def _named(self) -> dict[str, Any]:
        return dict(yaml.safe_load(files("diffretriever").joinpath(self._file).read_text("utf-8")))

    def names(self) -> list[str]:
        """Return the names of all presets."""
        return list(self._named)

    def load(self, name: str) -> C:
        """Return the preset `name`, or what the YAML file `name` describes.

        Raises:
            ValueError: no such preset or file, or an unknown key.
        """
        try:
            return self._adapter.validate_python(self._read(name))
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ValueError(f"{name} does not describe a {self._kind}: {problems}") from error

    def _read(self, name: str) -> Any:
        if name in self._named:
            return self._named[name]
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            raise ValueError(f"unknown {self._kind} '{name}'.{suggest(name, self._named)} Or give a .yaml file.")
        if not path.is_file():
            raise ValueError(
                f"no file {name}: give a YAML file that describes a {self._kind}, or one of {self.names()}"
            )
        return yaml.safe_load(path.read_text("utf-8"))


RETRIEVERS: Presets[RetrieverConfig] = Presets("retriever", "presets.yaml", RETRIEVER_ADAPTER)


def preset_names() -> list[str]:
    """Return the names of all retriever presets."""
    return RETRIEVERS.names()


def load_retriever(
    name: str, backbone: str | None = None, budget: Budget | None = None, adapter: str | None = None
) -> RetrieverConfig:
    """Return the retriever called `name`, or described by the YAML file `name`, with parts replaced where given.

    Raises:
        ValueError: no such preset or file, an unknown key, or a part that this method does not have.
    """
    config = RETRIEVERS.load(name)
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
        places |= {"source": lasting_place(backbone), "revision": None}
    if adapter is not None:
        places |= {"adapter": lasting_place(adapter), "adapter_revision": None}
    return config.model_copy(update={"backbone": config.backbone.model_copy(update=places)})


def lasting_place(source: str) -> str:
    """Return a local folder as an absolute path, since workers run in other directories; a hub id as it is."""
    return str(Path(source).absolute()) if Path(source).is_dir() else source
