"""A trained adapter on disk: PEFT's two files, slot layers, our manifest; whole or not there at all, and read back."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from diffretriever.backbones.adapter_files import WEIGHT_FILE, AdapterFiles
from diffretriever.backbones.slot_layers import SLOTS_FILE
from diffretriever.files import file_digest, whole_folder
from schemas.training_manifest import MANIFEST_FILE, TrainingManifest

if TYPE_CHECKING:
    from peft import LoraConfig

    from diffretriever.backbones import Backbone

ADAPTER = "adapter"
"""Folder of the adapter, in each checkpoint and in the end."""
_LIBRARIES = ("torch", "transformers", "peft", "ray", "diffretriever")


def save_adapter(backbone: Backbone, config: LoraConfig, manifest: TrainingManifest, target: Path) -> TrainingManifest:
    """Write the adapter to the folder `target`, which must not be there yet, and return the manifest written with it.

    Raises:
        ValueError: what was written is empty, not finite, or was not changed by the training.
    """
    from diffretriever.training.lora import adapter_tensors

    with whole_folder(target) as folder:
        config.inference_mode = True
        # A set has another order in every process.
        config.target_modules = sorted(config.target_modules)
        config.save_pretrained(str(folder))
        save_file(adapter_tensors(backbone), folder / WEIGHT_FILE, metadata={"format": "pt"})
        if backbone.slot_layers is not None:
            save_file(backbone.slot_layers.tensors(), folder / SLOTS_FILE)
        check_trained(folder, manifest.step)
        written = manifest.model_copy(
            update={
                "adapter": file_digest(folder / WEIGHT_FILE),
                "slots": None if backbone.slot_layers is None else file_digest(folder / SLOTS_FILE),
                "versions": {library: version(library) for library in _LIBRARIES},
            }
        )
        (folder / MANIFEST_FILE).write_text(written.model_dump_json(indent=2) + "\n", "utf-8")
    return written


def check_trained(folder: Path, step: int) -> None:
    """Read an adapter back and look at every tensor.

    Raises:
        ValueError: there is none, one has values that are not finite, or after steps some B is still all zero.
    """
    files = AdapterFiles.open(folder)
    slots = load_file(folder / SLOTS_FILE) if (folder / SLOTS_FILE).is_file() else {}
    for name, tensor in (files.tensors | slots).items():
        if not tensor.isfinite().all():
            raise ValueError(f"{files.file}: '{name}' has values that are not finite after step {step}")
    changed = [bool(t.any()) for name, t in files.tensors.items() if files.parse(name)[1] == "B"]
    if step and not any(changed):
        raise ValueError(f"{files.file}: no B differs from zero after {step} steps: the adapter does nothing")
