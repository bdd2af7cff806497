"""A checkpoint folder: its config, its safetensors files, the names and shapes of its tensors, its digest.

config.json is read strictly: a field that is not understood is an error, never ignored. A dropped field (a rope
scaling, an extra norm) leaves a model that runs and returns plausible nonsense.
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
"""A weight file of up to `WHOLE_FILE` bytes is digested whole, of a larger one `CHUNKS` pieces of `CHUNK` bytes."""

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
"""Fields of every family that do not change the states of given tokens."""


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds, known without reading any weights."""

    folder: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the config and the headers of the weight files; `ValueError` if one is missing or damaged."""
        if (folder / ADAPTER_CONFIG).exists():
            raise ValueError(f"{folder} holds an adapter, not a backbone: give its base model as the backbone.")
        files = _weight_files(folder)
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            shapes |= tensor_shapes(file)
        return cls(folder, read_json(folder / "config.json"), files, shapes)

    @property
    def config_file(self) -> Path:
        """The path of config.json, for messages."""
        return self.folder / "config.json"

    def digest(self) -> str:
        """Return a sha256 over config.json and the name, size and bytes of each weight file, in name order.

        Of a file larger than 64 MiB the header and 64 evenly spaced chunks of 1 MiB are read.
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
    """What a family knows about the fields of its config.json."""

    required: frozenset[str]
    """Read; an error when absent or null."""
    optional: frozenset[str] = frozenset()
    """Read where present."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Not read: the computation here is right only for these values. Absent counts as right."""
    ignored: frozenset[str] = frozenset()
    """Not read: no effect on what is computed here."""

    def check(self, config: Mapping[str, Any], file: Path, accepted: Collection[str] = ()) -> None:
        """Raise `ValueError` for a field of a config that is unknown (unless `accepted`), missing or not supported."""
        # A dump of a whole config has all of transformers' own fields. At another value they are as unknown as any.
        generic = json.loads(PreTrainedConfig().to_json_string(use_diff=False))
        computed = self.required | self.optional | self.fixed.keys()
        known = computed | self.ignored | BOOKKEEPING
        for name, value in config.items():
            if name in known or name in accepted or (name in generic and value == generic[name]):
                continue
            raise ValueError(
                f"{file}: unknown field '{name}' (= {value!r}): it may change what the model computes. "
                "If it does not, remove it from the file, or name it in the retriever's backbone.accepted_fields."
            )
        for name in sorted(self.required):
            if config.get(name) is None:
                raise ValueError(f"{file}: field '{name}' is missing.")
        for name, allowed in self.fixed.items():
            if name in config and config[name] not in allowed:
                supported = " or ".join(map(repr, allowed))
                raise ValueError(f"{file}: field '{name}' is {config[name]!r}; only {supported} is supported.")


def pick(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields that are present and not null."""
    return {name: config[name] for name in names if config.get(name) is not None}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file by name, without reading the values; `ValueError` if it is not whole."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}): fetch it again.") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of an adapter; `ValueError` if it is missing, damaged or empty."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: of adapters only safetensors are read.")
    if not tensor_shapes(file):
        raise ValueError(f"{file} has no tensors: save the adapter again.")
    return load_file(file)


def tensors_digest(seed: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over `seed` and the name, dtype, shape and bytes of each tensor, by name."""
    digest = hashlib.sha256(seed.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint; `ValueError` where there is none."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: this is not a checkpoint folder.")
    with understood(file, "fetch it again"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object: fetch it again.")
    return content


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ValueError(f"{folder} has neither {single.name} nor {index.name}: only safetensors are read.")
    files = tuple(folder / name for name in shards_of(index))
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{index} names {missing[0]}, which is not there: fetch the checkpoint again.")
    return files


def shards_of(index: Path) -> list[str]:
    """Return the weight files that model.safetensors.index.json names; `ValueError` if one is outside of its folder."""
    with understood(index, "fetch the checkpoint again"):
        names = sorted(set(read_json(index)["weight_map"].values()))
        if outside := [name for name in names if name != Path(name).name]:
            raise ValueError(f"{index} names {outside[0]}, outside of its folder: fetch the checkpoint again.")
    return names


def _sampled_ranges(size: int, header: int) -> list[tuple[int, int]]:
    if size <= WHOLE_FILE:
        return [(0, size)]
    step = (size - CHUNK) / (CHUNKS - 1)
    return [(0, header), *((round(index * step), CHUNK) for index in range(CHUNKS))]
