"""The files of a published embedding model: where they are, what they ask for, whether that is allowed, their digest.

They are in a local folder, on the hub, or those of the embedded model. Beside a transformers checkpoint such a folder
may hold `modules.json`, the list of what follows the transformer (pooling, projection, normalisation) with a folder
for each. Weights are read from safetensors only. Python code of a model's repository runs only where the config asks
for it and the person at hand has named the model; see `diffretriever.consent`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from diffretriever.backbones.adapter_files import CONFIG_FILE as ADAPTER_CONFIG
from diffretriever.backbones.checkpoint import Checkpoint, read_json
from diffretriever.backbones.source import FetchError, resolve_source
from diffretriever.consent import VARIABLE, check_trusted
from diffretriever.files import fetched_folder, is_local, understood
from diffretriever.schemas.places import StorePath, plain_place
from diffretriever.schemas.retriever import LibraryRetriever

_EXTRA = "sentence_transformers"
_ROOT_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "artifact.metadata"]
_MODULE_FILES = ["*.json", "*.txt", "*.model"]
_CODE_FILES = ["*.py"]
_WEIGHT_FILES = ["*.safetensors"]
_LIBRARY_TYPES = re.compile(r"sentence_transformers(\.\w+)*\.[A-Z]\w*|pylate\.models\.Dense\.Dense")
"""Modules that the library itself has; the second it replaces with its own."""
_KERNEL_OPTIONS = {"allow_all_kernels", "kernel_config", "use_kernels"}
"""Options of transformers that make it fetch and import kernels."""


class Module(NamedTuple):
    """One entry of `modules.json`."""

    type: str
    folder: Path


@dataclass(frozen=True)
class LibraryFiles:
    """A model's folder."""

    folder: Path
    remote_code: bool
    """Whether its Python code runs: the config asks for it, and consent was checked."""

    @classmethod
    def open(cls, config: LibraryRetriever, *, weights: bool) -> LibraryFiles:
        """Find the folder, fetching it from the hub where it must, and check that it can be used as `config` says.

        `weights` False leaves the weights where they are.

        Raises:
            ValueError: The extra is not installed; the source cannot be found or fetched; the model needs code of
                its repository that `config` does not ask for, or that nobody has consented to; it has its weights in
                pickles only; or `config` contradicts its files.
        """
        if importlib.util.find_spec(_EXTRA) is None:
            raise ValueError("the library method needs an extra: pip install 'diffretriever[models]'")
        if config.backbone.adapter is not None:
            raise ValueError("the library method takes no adapter: merge it into the weights, and leave adapter out")
        if config.backbone.accepted_fields:
            raise ValueError("the library method reads config.json by the library's rules: leave accepted_fields out")
        if config.remote_code:
            # Before anything is fetched: the one place where it is asked.
            check_trusted(config.backbone.source, config.backbone.revision)
        files = cls(_find_folder(config, weights=weights), config.remote_code)
        _check_adapter(files)
        _check_code(files, config)
        if config.pooling != "auto" and files.modules:
            raise ValueError(f"{files.folder / 'modules.json'} says how to pool: leave pooling: {config.pooling} out")
        if weights:
            _check_weights(files)
        return files

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """The modules in order; none where the folder is a plain transformers checkpoint."""
        return _read_modules(self.folder)

    @property
    def transformer(self) -> Path:
        """The folder of the transformer, which is the first module."""
        return self.modules[0].folder if self.modules else self.folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """The transformer's `config.json`."""
        return read_json(self.transformer / "config.json")

    @cached_property
    def library_config(self) -> dict[str, Any]:
        """The library's `config_sentence_transformers.json`, empty where there is none."""
        return self.optional("config_sentence_transformers.json")

    @cached_property
    def transformer_settings(self) -> dict[str, Any]:
        """The library's settings of the transformer: `sentence_bert_config.json`, once named after the family."""
        names = sorted(file.name for file in self.transformer.glob("sentence_*_config.json"))
        return self.optional(names[0], self.transformer) if names else {}

    @property
    def is_stanford_colbert(self) -> bool:
        """Whether this is a late-interaction model as Stanford's ColBERT saves it."""
        return not self.modules and "HF_ColBERT" in (self.config.get("architectures") or [])

    def optional(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Return the object in a JSON file of the folder, empty where there is no such file."""
        file = (folder or self.folder) / name
        return read_json(file) if file.is_file() else {}

    def digest(self) -> str:
        """Return a sha256 over the weights, as `Checkpoint.digest` has it, and name and bytes of every other file.

        Files that the model does not use (its card, weights in other formats) do not count.
        """
        checkpoint = Checkpoint.open(self.transformer)
        digest = hashlib.sha256(checkpoint.digest().encode())
        own = _MODULE_FILES + _WEIGHT_FILES
        patterns = _ROOT_FILES + (_CODE_FILES if self.remote_code else [])
        found = {file for pattern in patterns for file in self.folder.glob(pattern)}
        found |= {file for module in self.modules for pattern in own for file in module.folder.glob(pattern)}
        for file in sorted(found - set(checkpoint.files)):
            digest.update(f"\n{file.relative_to(self.folder).as_posix()} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()


def _read_modules(folder: Path) -> tuple[Module, ...]:
    """Return the modules in order; none where `folder` is a plain transformers checkpoint.

    Raises:
        ValueError: a module lies outside of `folder`.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return ()
    with understood(file, "fetch the model again"):
        entries = json.loads(file.read_text("utf-8"))
        for entry in entries:
            path = PurePosixPath(entry["path"])
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{file}: the module at '{path}' lies outside of the model's folder")
        return tuple(Module(str(entry["type"]), folder / entry["path"]) for entry in entries)


def _find_folder(config: LibraryRetriever, *, weights: bool) -> Path:
    """Return the model's folder, fetching what is not on this machine; `weights` False leaves the weights there.

    Raises:
        ValueError: The source cannot be found or fetched.
    """
    source = config.backbone.source
    folder = resolve_source(source, config.backbone.revision, weights=False)
    if source == "minilm" or Path(plain_place(source)).is_dir():
        return folder
    # Only the folders that modules.json names: others hold the same weights in other formats, or adapters.
    below = [module.folder.relative_to(folder) for module in _read_modules(folder)]
    weight_files = _WEIGHT_FILES if weights else []
    inside = [f"{path.as_posix()}/{name}" for path in below if path.parts for name in _MODULE_FILES + weight_files]
    at_root = _ROOT_FILES + weight_files + (_CODE_FILES if config.remote_code else [])
    if not is_local(source):
        return fetched_folder(StorePath(source), at_root + inside)
    try:
        # `*` also matches what lies deeper, so that the root needs a call of its own. The folder is named after the
        # commit, which stays the same when the branch moves on.
        for wanted, unwanted in ((at_root, ["*/*"]), (inside, None)):
            if wanted:
                snapshot_download(
                    source, revision=folder.name, allow_patterns=wanted, ignore_patterns=unwanted, etag_timeout=10
                )
    except (HfHubHTTPError, OSError) as error:
        raise FetchError(f"the files of '{source}' could not be fetched ({type(error).__name__}: {error})") from error
    return folder


def _check_code(files: LibraryFiles, config: LibraryRetriever) -> None:
    foreign = [module.type for module in files.modules if not _LIBRARY_TYPES.fullmatch(module.type)]
    foreign += [*_kernels(files.config), *_kernels(files.transformer_settings)]
    mapped = files.config.get("auto_map") or {}
    if config.remote_code or not (foreign or (mapped and not config.bidirectional)):
        return
    named = ", ".join(foreign or sorted(set(map(str, mapped.values()))))
    wanted = config.model_copy(update={"remote_code": True, "bidirectional": False})
    described = yaml.safe_dump({"method": "library", **wanted.model_dump(exclude_defaults=True)}, sort_keys=False)
    raise ValueError(
        f"'{config.backbone.source}' runs by Python code of its own repository ({named}), which could do anything "
        "that you can do on this machine. If you have read that code and trust it, name the model in every command "
        f"that may run it (`--trust-code`, or {VARIABLE} in the environment), put this into a YAML file and name the "
        f"file as the retriever; `remote_code: true` asks for it:\n{described}"
    )


def _kernels(values: dict[str, Any]) -> Iterator[str]:
    """What would be run of other repositories: transformers fetches and imports kernels that a config names."""
    for key, value in values.items():
        named = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any("/" in str(name) for name in named):
            yield f"{key}: {value}"
        elif key in _KERNEL_OPTIONS and value:
            yield key
        elif isinstance(value, dict):
            yield from _kernels(value)


def _check_adapter(files: LibraryFiles) -> None:
    # transformers would load the base model that the adapter's config names, wherever that is.
    for folder in (files.folder, files.transformer):
        if (folder / ADAPTER_CONFIG).exists():
            raise ValueError(f"{folder} holds an adapter ({ADAPTER_CONFIG}): merge it into the weights, and remove it")


def _check_weights(files: LibraryFiles) -> None:
    # Without this, transformers and the library would read pickles where there is nothing else.
    needed = [files.transformer, *(module.folder for module in files.modules if module.type.endswith(".Dense"))]
    for folder in needed:
        if not any(folder.glob("*.safetensors")):
            raise ValueError(
                f"{folder} has no safetensors, and pickles are not read. Many models on the hub have them in a pull "
                "request of the conversion service: name it as the backbone's revision (`revision: refs/pr/1`, or its "
                "number). Or load the model where you trust it and save it anew with save_pretrained."
            )
