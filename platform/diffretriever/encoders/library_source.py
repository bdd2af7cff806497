"""Where the files of a published embedding model are: a local folder, the hub, or the embedded package.

Beside a transformers checkpoint such a folder may hold `modules.json`, the list of what follows the transformer
(pooling, projection, normalisation) with a folder for each.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from diffretriever.backbones.source import resolve_source
from schemas.retriever import LibraryRetriever

ROOT_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "artifact.metadata"]
MODULE_FILES = ["*.json", "*.txt", "*.model"]
CODE_FILES = ["*.py"]
WEIGHT_FILES = ["*.safetensors"]


class Module(NamedTuple):
    """One entry of `modules.json`."""

    type: str
    folder: Path


def read_modules(folder: Path) -> tuple[Module, ...]:
    """Return the modules in order; none where `folder` is a plain transformers checkpoint.

    Raises:
        ValueError: a module lies outside of `folder`.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return ()
    entries = json.loads(file.read_text("utf-8"))
    for entry in entries:
        path = PurePosixPath(entry["path"])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{file}: the module at '{path}' lies outside of the model's folder")
    return tuple(Module(entry["type"], folder / entry["path"]) for entry in entries)


def find_folder(config: LibraryRetriever, *, weights: bool) -> Path:
    """Return the model's folder, fetching from the hub what is missing; `weights` False leaves the weights there.

    Raises:
        ValueError: The source cannot be found or fetched.
    """
    source = config.backbone.source
    folder = resolve_source(source, config.backbone.revision, weights=False)
    if source == "minilm" or Path(source).expanduser().is_dir():
        return folder
    # Only the folders that modules.json names: others hold the same weights in other formats, or adapters.
    below = [module.folder.relative_to(folder) for module in read_modules(folder)]
    weight_files = WEIGHT_FILES if weights else []
    inside = [f"{path.as_posix()}/{name}" for path in below if path.parts for name in MODULE_FILES + weight_files]
    at_root = ROOT_FILES + weight_files + (CODE_FILES if config.remote_code else [])
    try:
        # `*` also matches what lies deeper, so that the root needs a call of its own. The folder is named after the
        # commit, which stays the same when the branch moves on.
        for wanted, unwanted in ((at_root, ["*/*"]), (inside, None)):
            if wanted:
                snapshot_download(
                    source, revision=folder.name, allow_patterns=wanted, ignore_patterns=unwanted, etag_timeout=10
                )
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(f"the files of '{source}' could not be fetched ({type(error).__name__}: {error})") from error
    return folder
