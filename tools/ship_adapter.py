"""A finished training's adapter into the package: in half precision, with curve and provenance of all its stages.

A training that went on from the packaged adapter is its next stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.training import MANIFEST_FILE, TrainingManifest
from tools import ROOT

_PROVENANCE = "provenance.json"
_CURVE = "curve.jsonl"


class ShipAdapter(JobConfig):
    """Copy an adapter to where the package has its own."""

    run: Path
    """Output folder of jobs/train.py, finished."""
    commit: str
    """Commit whose code trained it."""
    training_data: str
    """How the training set was made, for people to read."""
    output: Path = ROOT / "platform" / "diffretriever" / "adapters" / "minilm"
    """Folder to write, in place of the one there, if any."""


def main(config: ShipAdapter) -> None:
    """Write the folder."""
    from diffretriever.backbones.checkpoint import ADAPTER_CONFIG
    from diffretriever.core.files import whole_folder

    source = config.run / "adapter"
    manifest = TrainingManifest.model_validate_json((source / MANIFEST_FILE).read_text("utf-8"))
    stages, curve = _earlier(config.output, manifest)
    stage = {
        "commit": config.commit,
        "training_data": config.training_data,
        "training": manifest.model_dump(mode="json"),
    }
    curve += _curve(config.run, len(stages) + 1)
    shutil.rmtree(config.output, ignore_errors=True)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(config.output) as folder:
        shutil.copy(source / ADAPTER_CONFIG, folder)
        shipped = manifest.model_copy(update=_halved(source, folder))
        (folder / MANIFEST_FILE).write_text(shipped.model_dump_json(indent=2) + "\n", "utf-8")
        (folder / _CURVE).write_text("".join(json.dumps(step) + "\n" for step in curve), "utf-8")
        provenance = json.dumps({"stages": [*stages, stage]}, indent=2)
        (folder / _PROVENANCE).write_text(provenance + "\n", "utf-8")
    print(f"{config.output}: {sum(file.stat().st_size for file in config.output.iterdir()) / 1e6:.1f} MB")


def _earlier(packaged: Path, manifest: TrainingManifest) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return provenance and curve of the stages before this one; none for a training that began anew."""
    from diffretriever.training.adapters import adapter_digest

    if manifest.start is None:
        return [], []
    if not packaged.is_dir() or adapter_digest(packaged) != manifest.start.digest:
        raise ValueError(f"the training went on from {manifest.start.adapter}, which is not what {packaged} holds now")
    provenance = json.loads((packaged / _PROVENANCE).read_text("utf-8"))
    return provenance["stages"], [json.loads(line) for line in (packaged / _CURVE).read_text("utf-8").splitlines()]


def _curve(run: Path, stage: int) -> Iterator[dict[str, Any]]:
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        yield {"stage": stage, **json.loads(line)}


def _halved(source: Path, target: Path) -> dict[str, str]:
    """Write the tensors in half precision; return the digests of their files by the manifest's fields."""
    from safetensors.torch import load_file, save_file

    from diffretriever.backbones.adapter import WEIGHT_FILE
    from diffretriever.backbones.slot_layers import SLOTS_FILE
    from diffretriever.core.files import file_digest

    digests = {}
    for field, name in (("adapter", WEIGHT_FILE), ("slots", SLOTS_FILE)):
        if (source / name).is_file():
            tensors = {key: tensor.half() for key, tensor in load_file(source / name).items()}
            save_file(tensors, target / name, metadata={"format": "pt"})
            (target / name).chmod(0o644)
            digests[field] = file_digest(target / name)
    return digests


if __name__ == "__main__":
    main(ShipAdapter.from_command_line())
