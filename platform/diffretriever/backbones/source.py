"""Where a checkpoint's files are: a local folder, the hub, or the embedded package."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from diffretriever.backbones.minilm import minilm_folder

TEXT_FILES = ["*.json", "vocab.txt", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]
"""What is fetched from the hub: no Python files, no pickles."""


def resolve_source(source: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder that holds the checkpoint, fetching it from the hub where it must.

    `weights` False leaves the weights where they are.

    Raises:
        ValueError: No such folder, and the hub does not know it or cannot be reached; or `revision` was
            given for something that is not on the hub.
    """
    folder = Path(source).expanduser()
    is_hub_id = str(source) != "minilm" and not folder.is_dir()
    if revision is not None and not is_hub_id:
        raise ValueError(f"revision {revision!r} has no meaning for '{source}': it is not fetched from the hub.")
    if str(source) == "minilm":
        return minilm_folder()
    if folder.is_dir():
        return folder
    if isinstance(source, Path) or source.startswith(("/", "./", "../", "~")):
        raise ValueError(f"backbone folder '{source}' does not exist.")
    return _fetch(source, revision, TEXT_FILES + (WEIGHT_FILES if weights else []))


def _fetch(hub_id: str, revision: str | None, wanted: list[str]) -> Path:
    try:
        # Subfolders hold other formats of the same weights (onnx, original).
        path = snapshot_download(
            hub_id, revision=revision, allow_patterns=wanted, ignore_patterns=["*/*"], etag_timeout=10
        )
    except HFValidationError as error:
        raise ValueError(f"backbone '{hub_id}': no such folder, and not a hub id either ({error}).") from error
    except (HfHubHTTPError, OSError) as error:
        at = f" at revision '{revision}'" if revision else ""
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ValueError(
            f"backbone '{hub_id}'{at}: folder does not exist, and the hub has no such model or is "
            f"unreachable ({reason}). "
            "Give an existing folder, or `minilm`, which needs no network."
        ) from error
    return Path(path)
