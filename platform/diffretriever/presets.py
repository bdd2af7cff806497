"""Loads named configs (presets) and YAML files of users, and names systems in runs."""

from __future__ import annotations

import re
from functools import cached_property
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from diffretriever.core.files import is_file, read_model, read_text
from diffretriever.protocols import under_protocol
from diffretriever.schemas.base import error_messages, suggest
from diffretriever.schemas.budget import Budget, is_selection
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.installed import MISSING, names_installed
from diffretriever.schemas.locations import StorePath, parse_location, plain_location
from diffretriever.schemas.retriever import (
    ASKED_BY,
    RETRIEVER_ADAPTER,
    MaskedRetriever,
    NeuralRetriever,
    RetrieverConfig,
    has_slots,
    is_neural,
)
from diffretriever.schemas.sweep import BudgetSelection

C = TypeVar("C")
_LIBRARY = "sentence-transformers/"
"""Prefix of models that are used as by sentence-transformers."""
_PATHS = ("/", "./", "../", "~")
_NO_LIMIT = 1 << 20
"""Tokens: more than any model reads, so that only its own limit applies."""
_NOT_IN_A_TAG = re.compile(r"[^\w.+-]+", re.ASCII)

_MAX_SUGGESTED = 4
"""Presets that a message suggests."""
_PURPOSE = "purpose"
"""Key of a preset's description, which is not part of the config."""


class Presets(Generic[C]):
    """The named configs of one kind."""

    def __init__(self, kind: str, file: str, adapter: TypeAdapter[C], others: str = "a .yaml file") -> None:
        """Take `kind`, the noun for a config, and `others`, alternatives to a name; both are for messages."""
        self._kind, self._file, self._adapter, self._others = kind, file, adapter, others

    @cached_property
    def _named(self) -> dict[str, Any]:
        return dict(yaml.safe_load(files("diffretriever").joinpath(self._file).read_text("utf-8")))

    def purposes(self) -> dict[str, str]:
        """Return the purpose of each preset, in the file's order."""
        return {name: values.get(_PURPOSE, "") for name, values in self._named.items()}

    def load(self, name: str) -> C:
        """Load a preset or a YAML file.

        Raises:
            ValueError: Unknown preset, file or key.
        """
        return self.parse(self.read(name), name)

    def parse(self, values: Any, name: str) -> C:
        """Validate values read under a name; raises `ValueError` for an unknown key or invalid value."""
        if isinstance(values, dict):
            values = {key: value for key, value in values.items() if key != _PURPOSE}
        try:
            return self._adapter.validate_python(values)
        except ValidationError as error:
            problems = "; ".join(error_messages(error))
            if error.errors()[0]["type"] == MISSING:
                raise ValueError(problems) from None
            raise ValueError(f"{name} does not describe a {self._kind}: {problems}") from error

    def read(self, name: str) -> Any:
        """Return the unvalidated values of a preset or file; raises `ValueError` if it is unknown or unreadable."""
        if name in self._named:
            return self._named[name]
        path = parse_location(name)
        if path.suffix not in (".yaml", ".yml"):
            raise ValueError(f"unknown {self._kind} '{name}'.{self._suggested(name)} Or give {self._others}.")
        if not is_file(path):
            raise ValueError(
                f"no file {name}: give a YAML file that describes a {self._kind}, or one of {list(self._named)}"
            )
        try:
            return yaml.safe_load(read_text(path))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{name} is not valid YAML: {error}") from error

    def _suggested(self, name: str) -> str:
        similar = [f"'{known}'" for known in self._named if name.lower() in known]
        return f" Did you mean {' or '.join(similar[:_MAX_SUGGESTED])}?" if similar else suggest(name, self._named)


RETRIEVERS: Presets[RetrieverConfig] = Presets(
    "retriever", "presets.yaml", RETRIEVER_ADAPTER, f"a .yaml file, or {_LIBRARY}MODEL"
)


def list_presets() -> dict[str, str]:
    """Return the purpose of each retriever preset, by name.

    Example:
        >>> [name for name in dr.list_presets() if "minilm" in name][:2]
        ['minilm-pooled', 'minilm-tokens']
    """
    return RETRIEVERS.purposes()


def load_retriever(
    name: str,
    backbone: str | None = None,
    budget: Budget | Path | StorePath | None = None,
    adapter: str | None = None,
    protocol: str | None = None,
) -> RetrieverConfig:
    """Load a retriever by name, and replace the parts that are passed.

    Args:
        name: preset, YAML file, `sentence-transformers/MODEL` (see `library_model`), or PACKAGE:NAME of an installed
            package (see `schemas.installed`).
        backbone: folder or hub id of another backbone.
        budget: K_q and K_p, or path of the selection.json of a budget sweep; also allowed in the YAML file.
        adapter: folder or hub id of another LoRA adapter.
        protocol: protocol whose rules change the settings, after all of the above.

    Raises:
        ValueError: Unknown preset, file or key, a part that the method lacks, or a selection for another backbone.

    Example:
        >>> config = dr.load_retriever("diffretriever-minilm", budget=dr.Budget(4, 16))
        >>> config.method, str(config.budget), config.default_mode
        ('masked', 'q4p16', 'dense+0.25bm25')
    """
    values = _read(name)
    if isinstance(values, dict) and is_selection(values.get("budget")):
        budget = budget or parse_location(values["budget"])
        values = {key: value for key, value in values.items() if key != "budget"}
    config = RETRIEVERS.parse(values, name)
    if backbone is not None or adapter is not None:
        config = with_weights(config, backbone, adapter)
    if budget is not None:
        config = _with_budget(config, budget)
    return config if protocol is None else under_protocol(config, protocol).config


def library_model(name: str) -> dict[str, Any]:
    """Return the config of a bi-encoder from its own files: prompts, length, normalisation.

    After `sentence-transformers/`, accepts what `SentenceTransformer` accepts: a hub id (without slash: of the
    organisation sentence-transformers), a folder that begins with `/`, `./`, `../` or `~`, or a URI.

    Raises:
        ValueError: Missing name or folder, or a hub id that is also a local folder.
    """
    model = name.removeprefix(_LIBRARY)
    if not model.strip():
        raise ValueError(f"{name}: name a model, such as {_LIBRARY}all-MiniLM-L6-v2 or {_LIBRARY}./folder")
    if model.startswith(_PATHS):
        folder = Path(plain_location(model))
        if not folder.is_dir():
            raise ValueError(f"{name}: there is no folder {folder}")
        model = str(folder.absolute())
    else:
        model = model if "/" in model else f"{_LIBRARY}{model}"
        if Path(model).is_dir():
            raise ValueError(
                f"{name}: {model} is both a local folder and a hub id: for the folder, write {_LIBRARY}./{model}"
            )
    limits = {"max_query_tokens": _NO_LIMIT, "max_passage_tokens": _NO_LIMIT}
    return {"method": "library", "backbone": {"source": model}, "similarity": "auto", "text": limits}


def _read(name: str) -> Any:
    is_file_name = name.endswith((".yaml", ".yml"))
    if name.startswith(_LIBRARY) and not is_file_name:
        return library_model(name)
    if names_installed(name) and not is_file_name:
        return {"method": name}
    return RETRIEVERS.read(name)


def _with_budget(config: RetrieverConfig, budget: Budget | Path | StorePath) -> MaskedRetriever:
    if not has_slots(config):
        raise ValueError(f"the {config.method} method has no slots: leave --budget out")
    chosen = budget if isinstance(budget, Budget) else _selected(config, budget)
    return config.model_copy(update={"budget": chosen})


def read_selection(path: Path | StorePath) -> BudgetSelection:
    """Read a selection; raises `ValueError` if the file is missing or invalid."""
    if not is_file(path):
        raise ValueError(f"no file {path}: give a budget such as q4p16, or the selection.json of a budget sweep")
    return read_model(path, BudgetSelection, "give a selection.json that jobs/sweep_budgets.py wrote")


def _selected(config: MaskedRetriever, path: Path | StorePath) -> Budget:
    selection, backbone = read_selection(path), config.backbone
    ours, theirs = _weights(backbone.source, backbone.adapter), _weights(selection.backbone, selection.adapter)
    if ours != theirs:
        raise ValueError(
            f"{path} was made for {theirs}, this retriever has {ours}: sweep the budgets of this one, or give the "
            f"budget itself ({selection.budget} was chosen there)"
        )
    return selection.budget


def _weights(source: str, adapter: str | None) -> str:
    return source if adapter is None else f"{source} with adapter {adapter}"


def with_weights(config: RetrieverConfig, backbone: str | None, adapter: str | None) -> NeuralRetriever:
    """Return a config with another backbone or adapter; None keeps its own.

    Raises:
        ValueError: The method has no backbone or adapter.
    """
    if not is_neural(config):
        raise ValueError(f"the {config.method} method has no backbone: leave --backbone and --adapter out")
    changes: dict[str, str | None] = {}
    if backbone is not None:
        changes |= {"source": absolute_source(backbone), "revision": None}
    if adapter is not None:
        changes |= {"adapter": absolute_source(adapter), "adapter_revision": None}
    return config.model_copy(update={"backbone": config.backbone.model_copy(update=changes)})


def absolute_source(source: str) -> str:
    """Make a local folder absolute, since workers run in other directories; hub ids stay."""
    folder = Path(plain_location(source))
    return str(folder.absolute()) if folder.is_dir() else source


def system_name(manifest: IndexManifest, query_budget: int | str | None = None) -> str:
    """Return the system's name for runs, such as `diffretriever-minilm.q4p16`; no spaces.

    Consists of preset, or method and weights, of the budget, and of the codec, if any. `query_budget` is K_q or the
    name of a selector; None: the retriever's.
    """
    config, parts = manifest.retriever, []
    if has_slots(config):
        chosen = f"-{in_tag(query_budget)}-" if isinstance(query_budget, str) else query_budget or config.budget.query
        parts = [f"q{chosen}p{config.budget.passage}"]
    elif query_budget is not None:
        parts = [f"q{query_budget}"]
    if manifest.codec is not None:
        parts.append(str(manifest.codec.name))
    return ".".join([in_tag(_preset_of(config) or _described(config)), *parts])


def retriever_name(config: RetrieverConfig) -> str:
    """Return the name of a retriever: its preset, or its method and weights."""
    return _preset_of(config) or config.title


def in_tag(name: str) -> str:
    """Make a name valid in a run's tag: `-` replaces spaces, slashes and similar."""
    return _NOT_IN_A_TAG.sub("-", name).strip("-") or "run"


def _preset_of(config: RetrieverConfig) -> str | None:
    """Return the matching preset, ignoring collection, language, budget, precision, revisions and prompts."""
    matches = []
    for name in list_presets():
        preset = RETRIEVERS.load(name)
        variants = [preset, *(preset.on(collection) for collection in ("", *getattr(preset, "on_collections", ())))]
        if any(_system(config) == _system(variant) for variant in variants):
            matches.append((preset.model_dump().get("budget") != config.model_dump().get("budget"), name))
    return min(matches, key=lambda match: match[0])[1] if matches else None


def _system(config: RetrieverConfig) -> dict[str, Any]:
    values = config.model_dump(mode="json", exclude={"budget", "language", *ASKED_BY})
    backbone = values.get("backbone", {})
    return {**values, "backbone": {name: backbone.get(name) for name in ("source", "adapter", "adapter_head")}}


def _described(config: RetrieverConfig) -> str:
    if not is_neural(config):
        return config.title
    sources = filter(None, [config.backbone.source, config.backbone.adapter])
    return "-".join([config.method, *(PurePosixPath(source.rstrip("/")).name for source in sources)])
