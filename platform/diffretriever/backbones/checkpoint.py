"""A checkpoint folder: config, safetensors files, tensor shapes and digest.

Unknown fields of config.json are errors: ignoring one, such as a rope scaling, would silently give wrong results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedConfig

from diffretriever.core.files import understood

ADAPTER_CONFIG = "adapter_config.json"
WHOLE_FILE = 64 * 2**20
CHUNK = 2**20
CHUNKS = 64
"""Files of up to `WHOLE_FILE` bytes are hashed whole; of larger ones, `CHUNKS` pieces of `CHUNK` bytes."""

BOOKKEEPING = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "mask_token_id",
        "model_type",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields of all architectures that do not affect the computation."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint folder, without the weights' values."""

    folder: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the config and the headers of the weight files. Raises ValueError if one is missing or damaged."""
        if (folder / ADAPTER_CONFIG).exists():
            raise ValueError(f"{folder} is an adapter, not a backbone: set its base model as the backbone")
        files = _weight_files(folder)
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            shapes |= tensor_shapes(file)
        return cls(folder, read_json(folder / "config.json"), files, shapes)

    @property
    def config_file(self) -> Path:
        """The path of config.json."""
        return self.folder / "config.json"

    def digest(self) -> str:
        """Return the SHA-256 of config.json and of each weight file's name, size and bytes, in hex.

        Of files above 64 MiB, the header and 64 evenly spaced chunks of 1 MiB are hashed.
        """
        digest = hashlib.sha256(self.config_file.read_bytes())
        for path in self.files:
            size = path.stat().st_size
            digest.update(f"\n{path.name} {size}\n".encode())
            with path.open("rb") as file:
                header = 8 + int.from_bytes(file.read(8), "little")
                for start, length in _sampled_ranges(size, header):
                    file.seek(start)
                    digest.update(file.read(length))
        return digest.hexdigest()


@dataclass(frozen=True)
class ConfigFields:
    """The known fields of an architecture's config.json."""

    required: frozenset[str]
    """Used; must be present and not null."""
    optional: frozenset[str] = frozenset()
    """Used if present."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Supported values of fields that are not used; the field may be missing."""
    ignored: frozenset[str] = frozenset()
    """Fields without effect."""

    def check(self, config: Mapping[str, Any], file: Path, accepted: Collection[str] = ()) -> None:
        """Raise ValueError for a missing, unsupported or unknown field, unless it is `accepted`."""
        # Full dumps of a config contain transformers' generic fields; their default values are accepted.
        generic = json.loads(PreTrainedConfig().to_json_string(use_diff=False))
        computed = self.required | self.optional | self.fixed.keys()
        known = computed | self.ignored | BOOKKEEPING
        for name, value in config.items():
            if name in known or name in accepted or (name in generic and value == generic[name]):
                continue
            raise ValueError(
                f"{file}: unknown field '{name}' (= {value!r}), which may change the computation: if it does not, "
                "remove it from the file, or add it to the retriever's backbone.accepted_fields"
            )
        for name in sorted(self.required):
            if config.get(name) is None:
                raise ValueError(f"{file}: field '{name}' is missing")
        for name, allowed in self.fixed.items():
            if name in config and config[name] not in allowed:
                supported = " or ".join(map(repr, allowed))
                raise ValueError(f"{file}: field '{name}' is {config[name]!r}; only {supported} is supported")


def pick(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields that are present and not null."""
    return {name: config[name] for name in names if config.get(name) is not None}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file's tensors by name. Raises ValueError if the file is damaged."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}): fetch it again") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of an adapter. Raises ValueError if it is missing, damaged or empty."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: of adapters only safetensors are read")
    if not tensor_shapes(file):
        raise ValueError(f"{file} has no tensors: save the adapter again")
    return load_file(file)


def tensors_digest(seed: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of `seed` and each tensor's name, dtype, shape and bytes, in hex."""
    digest = hashlib.sha256(seed.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of a checkpoint. Raises ValueError if it is missing or not an object."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: this is not a checkpoint folder")
    with understood(file, "fetch it again"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object: fetch it again")
    return content


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ValueError(f"{folder} has neither {single.name} nor {index.name}: only safetensors are read")
    files = tuple(folder / name for name in shards_of(index))
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{index} names {missing[0]}, which is missing: fetch the checkpoint again")
    return files


def shards_of(index: Path) -> list[str]:
    """Return the weight files in model.safetensors.index.json. Raises ValueError if one is outside of the folder."""
    with understood(index, "fetch the checkpoint again"):
        names = sorted(set(read_json(index)["weight_map"].values()))
        if outside := [name for name in names if name != Path(name).name]:
            raise ValueError(f"{index} names {outside[0]}, outside of its folder: fetch the checkpoint again")
    return names


def _sampled_ranges(size: int, header: int) -> list[tuple[int, int]]:
    if size <= WHOLE_FILE:
        return [(0, size)]
    step = (size - CHUNK) / (CHUNKS - 1)
    return [(0, header), *((round(index * step), CHUNK) for index in range(CHUNKS))]
