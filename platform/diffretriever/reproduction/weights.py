"""Which weights are on this machine, found without loading them and without the network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from diffretriever.backbones.minilm import WEIGHTS_SHA256, minilm_folder


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint or adapter that is here."""

    commit: str | None
    """Of the hub's repository; None for a folder and for the embedded backbone."""
    state: str
    """Changes when the weights do."""


def find_weights(source: str, revision: str | None, instead: str, *, adapter: bool = False) -> Weights:
    """Return the weights of a folder, of the embedded backbone, or of the hub's cache.

    Args:
        source: folder, hub id or `minilm`.
        revision: branch, tag or commit of a hub id.
        instead: flag that gives other weights, for the message.
        adapter: whether it is an adapter and no whole model.

    Raises:
        ValueError: they are not here.
    """
    if source == "minilm":
        minilm_folder()
        return Weights(None, WEIGHTS_SHA256)
    config = "adapter_config.json" if adapter else "config.json"
    folder = Path(source)
    if folder.is_dir():
        if not _is_whole(folder, config):
            raise ValueError(f"no weights in {source}: it needs {config} and safetensors files")
        return Weights(None, _folder_state(folder))
    snapshot = _snapshot(source, revision, config)
    if snapshot is None or not _is_whole(snapshot, config):
        raise ValueError(f"no weights for {source}: not in the hub cache and no {instead}")
    return Weights(snapshot.name, snapshot.name)


def _snapshot(hub_id: str, revision: str | None, config: str) -> Path | None:
    try:
        found = try_to_load_from_cache(hub_id, config, revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _is_whole(folder: Path, config: str) -> bool:
    """Whether config and all weight files are there: reading a tokenizer leaves a cache without weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return all((folder / shard).is_file() for shard in shards)
    return (folder / config).is_file() and any(folder.glob("*.safetensors"))


def _folder_state(folder: Path) -> str:
    """Digest of names, sizes and times of the files: reading many gigabytes for every row would take minutes."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
