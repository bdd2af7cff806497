"""Finds, fetches, checks and digests the files of a published embedding model.

Weights are read from safetensors only. A model's Python code runs only with `remote_code: true` and permission in this
command; see `diffretriever.core.consent`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from diffretriever.backbones.checkpoint import ADAPTER_CONFIG, Checkpoint, read_json
from diffretriever.backbones.source import fetch_from_hub, resolve_source
from diffretriever.core.consent import check_trusted
from diffretriever.core.files import fetched_folder, is_local, understood
from diffretriever.schemas.locations import StorePath, plain_location
from diffretriever.schemas.retriever import LibraryRetriever
from diffretriever.schemas.settings import TRUST_VARIABLE

_SINGLE = "SentenceTransformer"
_LATE_INTERACTION = ("ColBERT", "MultiVectorEncoder")
"""Types of models with one vector per token: PyLate and Stanford, sentence-transformers."""
_TEXT_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "artifact.metadata"]
_CODE_FILES = ["*.py"]
_WEIGHT_FILES = ["*.safetensors"]
_MODULE_FOLDERS = "[0-9]*_*"
_OTHER_FORMATS = ["onnx/*", "openvino/*"]
_KERNEL_OPTIONS = {"allow_all_kernels", "kernel_config", "use_kernels"}
"""Options of transformers that download kernels."""


class Module(NamedTuple):
    """An entry of `modules.json`."""

    type: str
    folder: Path


@dataclass(frozen=True)
class LibraryFiles:
    """A model's folder: a transformers checkpoint and the folders of further modules."""

    folder: Path
    modules: tuple[Module, ...]
    """Modules in order; empty for a plain checkpoint."""

    @classmethod
    def open(cls, config: LibraryRetriever, *, weights: bool) -> LibraryFiles:
        """Find the folder, fetch missing files, and check that `config` fits the model.

        Raises:
            ValueError: The extra is not installed; the source cannot be fetched; the model needs code that may not run;
                its weights are pickles; or `config` contradicts its files.
        """
        if find_spec("sentence_transformers") is None:
            raise ValueError("the library method needs an extra: pip install 'diffretriever[models]'")
        if config.backbone.adapter is not None:
            raise ValueError("the library method takes no adapter: merge it into the weights, and remove adapter")
        if config.remote_code:
            check_trusted(config.backbone.source, config.backbone.revision)
        folder = _find_folder(config, weights=weights)
        files = cls(folder, _read_modules(folder))
        files._check(config, read_json(files.transformer / "config.json"))
        if weights:
            files._check_weights()
        return files

    @property
    def transformer(self) -> Path:
        """The folder of the first module."""
        return self.modules[0].folder if self.modules else self.folder

    def optional(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file of the folder, {} if it is missing."""
        return read_json(self.folder / name) if (self.folder / name).is_file() else {}

    def digest(self, *, code: bool) -> str:
        """Return the SHA-256 of the files that the model uses, with `code` including Python files."""
        checkpoint = Checkpoint.open(self.transformer)
        digest = hashlib.sha256(checkpoint.digest().encode())
        patterns = _TEXT_FILES + (_CODE_FILES if code else [])
        used = {file for pattern in patterns for file in self.folder.glob(pattern)}
        for pattern in _TEXT_FILES + _WEIGHT_FILES:
            used.update(file for module in self.modules for file in module.folder.glob(pattern))
        for file in sorted(used - set(checkpoint.files)):
            digest.update(f"\n{file.relative_to(self.folder).as_posix()} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def _check(self, config: LibraryRetriever, transformer_config: dict[str, Any]) -> None:
        # transformers would load the base model named in the adapter's config.
        if (self.transformer / ADAPTER_CONFIG).exists():
            raise ValueError(f"{self.transformer} contains an adapter ({ADAPTER_CONFIG}): merge it into the weights")
        foreign = self._foreign_code(config, transformer_config)
        if foreign and not config.remote_code:
            raise ValueError(
                f"'{config.backbone.source}' needs Python code of its own repository ({', '.join(foreign)}), which can "
                "do anything that you can do on this machine. If you have read that code and trust it, set "
                "`remote_code: true` in the retriever's YAML file, and name the model in every command that may run it "
                f"(`--trust-code`, or {TRUST_VARIABLE} in the environment)"
            )
        if any("TokenPooling" in module.type or module.type.endswith(".Router") for module in self.modules):
            raise ValueError(f"{self.folder} merges tokens or has other modules for queries: not supported")
        if config.pooling != "auto" and self.modules:
            raise ValueError(f"{self.folder / 'modules.json'} sets the pooling: remove pooling: {config.pooling}")
        is_stanford = "HF_ColBERT" in (transformer_config.get("architectures") or [])
        kind = "ColBERT" if is_stanford else self.optional("config_sentence_transformers.json").get("model_type")
        if config.vectors == "token" and kind not in _LATE_INTERACTION:
            raise ValueError(f"{self.folder} is not a late-interaction model: use vectors: single")
        if config.vectors == "single" and kind not in (None, _SINGLE):
            raise ValueError(
                f"{self.folder} is a {kind}, not a model of one vector per text: set vectors: token in a YAML file"
            )

    def _check_weights(self) -> None:
        for folder in (self.transformer, *(module.folder for module in self.modules if module.type.endswith(".Dense"))):
            if not any(folder.glob("*.safetensors")):
                raise ValueError(
                    f"{folder} has no safetensors, and pickles are not read: set the conversion service's pull "
                    "request as the backbone's revision (`revision: refs/pr/1`), or save the model again"
                )

    def _foreign_code(self, config: LibraryRetriever, transformer_config: dict[str, Any]) -> list[str]:
        library_prefixes = ("sentence_transformers.", "pylate.")
        foreign = [module.type for module in self.modules if not module.type.startswith(library_prefixes)]
        for values in (transformer_config, *map(read_json, sorted(self.transformer.glob("sentence_*_config.json")))):
            foreign += _kernels(values)
        mapped = {} if config.bidirectional else transformer_config.get("auto_map") or {}
        return foreign or sorted(set(map(str, mapped.values())))


def _read_modules(folder: Path) -> tuple[Module, ...]:
    file = folder / "modules.json"
    if not file.is_file():
        return ()
    with understood(file, "fetch the model again"):
        entries = json.loads(file.read_text("utf-8"))
        for path in (PurePosixPath(entry["path"]) for entry in entries):
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{file}: the module at '{path}' is outside of the model's folder")
        return tuple(Module(str(entry["type"]), folder / entry["path"]) for entry in entries)


def _find_folder(config: LibraryRetriever, *, weights: bool) -> Path:
    source = config.backbone.source
    folder = resolve_source(source, config.backbone.revision, weights=False)
    if source == "minilm" or Path(plain_location(source)).is_dir():
        return folder
    patterns = _TEXT_FILES + (_WEIGHT_FILES if weights else []) + (_CODE_FILES if config.remote_code else [])
    if not is_local(source):
        return fetched_folder(StorePath(source), [*patterns, *(f"{_MODULE_FOLDERS}/{name}" for name in patterns)])
    # The folder is named after the commit.
    fetch_from_hub("model", source, folder.name, patterns, _OTHER_FORMATS)
    return folder


def _kernels(values: dict[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        names = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any("/" in str(name) for name in names):
            yield f"{key}: {value}"
        elif key in _KERNEL_OPTIONS and value:
            yield key
        elif isinstance(value, dict):
            yield from _kernels(value)
