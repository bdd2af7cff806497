"""Where a checkpoint's or an adapter's files are: a local folder, the hub, or the embedded package."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from diffretriever.backbones.minilm import minilm_folder

TEXT_FILES = ["*.json", "vocab.txt", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]
ADAPTER_TEXT_FILES = ["config.json", "*_config.json", "training.json"]
ADAPTER_WEIGHT_FILES = ["adapter_model.safetensors", "slots.safetensors"]
"""What is fetched from the hub: no Python files, no pickles."""
EMBEDDED_ADAPTER = Path(__file__).resolve().parents[1] / "adapters" / "minilm"
"""How it was made: docs/embedded-model.md."""


def resolve_source(source: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder that holds the checkpoint, fetching it from the hub where it must.

    `weights` False leaves the weights where they are.

    Raises:
        ValueError: No such folder, and the hub does not know it or cannot be reached; or `revision` was
            given for something that is not on the hub.
    """
    if str(source) != "minilm":
        return _resolve("backbone", source, revision, TEXT_FILES + (WEIGHT_FILES if weights else []))
    _refuse_revision(source, revision)
    return minilm_folder()


def resolve_adapter(adapter: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder that holds the adapter, likewise; its config files may say how it was trained.

    `minilm` is the one that comes with this package, for the embedded backbone.
    """
    if str(adapter) == "minilm":
        _refuse_revision(adapter, revision)
        return EMBEDDED_ADAPTER
    return _resolve("adapter", adapter, revision, ADAPTER_TEXT_FILES + (ADAPTER_WEIGHT_FILES if weights else []))


def _resolve(kind: str, source: str | Path, revision: str | None, wanted: list[str]) -> Path:
    folder = Path(source).expanduser()
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
        raise ValueError(
            f"{kind} '{hub_id}'{at}: folder does not exist, and the hub has no such model or is "
            f"unreachable ({reason}). "
            f"Give an existing folder{embedded}."
        ) from error
    return Path(path)
