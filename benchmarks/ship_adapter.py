"""A finished training's adapter into the package: in half precision, with its manifest, curve and provenance."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from schemas.settings import JobConfig  # noqa: E402  (found through the path above)


class ShipAdapter(JobConfig):
    """Copy an adapter to where the package has its own."""

    run: Path
    """Output folder of jobs/train.py, finished."""
    commit: str
    """Commit whose code trained it."""
    training_data: str
    """How the training set was made, for people to read."""
    output: Path = ROOT / "platform" / "diffretriever" / "adapters" / "minilm"
    """Folder to write, in place of the one there."""


def main(config: ShipAdapter) -> None:
    """Write the folder."""
    from safetensors.torch import load_file, save_file

    from diffretriever.backbones.adapter_files import CONFIG_FILE, WEIGHT_FILE
    from diffretriever.backbones.slot_layers import SLOTS_FILE
    from diffretriever.files import file_digest, whole_folder
    from schemas.training_manifest import MANIFEST_FILE, TrainingManifest

    source = config.run / "adapter"
    manifest = TrainingManifest.model_validate_json((source / MANIFEST_FILE).read_text("utf-8"))
    if config.output.exists():
        shutil.rmtree(config.output)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(config.output) as folder:
        shutil.copy(source / CONFIG_FILE, folder)
        digests = {}
        for field, name in (("adapter", WEIGHT_FILE), ("slots", SLOTS_FILE)):
            if (source / name).is_file():
                tensors = {key: tensor.half() for key, tensor in load_file(source / name).items()}
                save_file(tensors, folder / name, metadata={"format": "pt"})
                (folder / name).chmod(0o644)
                digests[field] = file_digest(folder / name)
        text = manifest.model_copy(update=digests).model_dump_json(indent=2)
        (folder / MANIFEST_FILE).write_text(text + "\n", "utf-8")
        shutil.copy(config.run / "metrics.jsonl", folder / "curve.jsonl")
        made = {"commit": config.commit, "training_data": config.training_data}
        (folder / "provenance.json").write_text(json.dumps(made, indent=2) + "\n", "utf-8")
    print(f"{config.output}: {sum(file.stat().st_size for file in config.output.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(ShipAdapter.from_command_line())
