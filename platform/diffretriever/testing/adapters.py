"""LoRA adapters with random values in the authors' format.

`python -m diffretriever.testing.adapters --backbone FOLDER --output FOLDER`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.loader import family_of
from diffretriever.backbones.source import resolve_source
from diffretriever.testing import FAMILIES
from diffretriever.testing.published import Published


def write_random_adapter(
    backbone: str | Path,
    folder: str | Path,
    *,
    rank: int = 16,
    seed: int = 0,
) -> Path:
    """Write a random adapter with the authors' module names for a backbone, and return its folder.

    The backbone is a folder, a hub id or `minilm`. Changes are about as large as the matrices. Equal arguments give
    equal files.

    Raises:
        ValueError: The backbone's architecture is unknown.
    """
    checkpoint = Checkpoint.open(resolve_source(backbone))
    family = family_of(checkpoint.config, checkpoint.config_file).family
    published = next(published for published in FAMILIES.values() if published.model_type == family)
    tensors = _random_tensors(checkpoint, published.adapter_targets, rank, torch.Generator().manual_seed(seed))

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = _published_config(published, rank)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _random_tensors(
    checkpoint: Checkpoint, targets: tuple[str, ...], rank: int, generator: torch.Generator
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, shape in checkpoint.shapes.items():
        module = name.removesuffix(".weight")
        if module == name or module.rpartition(".")[2] not in targets:
            continue
        rows, columns = shape
        prefix = f"base_model.model.{module}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) / columns**0.5
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) / 4 / rank**0.5
    return tensors


def _published_config(published: Published, rank: int) -> dict[str, Any]:
    return {
        "base_model_name_or_path": None,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": 64,
        "lora_dropout": 0.05,
        "megatron_core": "megatron.core",
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": list(published.adapter_targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write a LoRA adapter with random values.")
    parser.add_argument("--backbone", required=True, metavar="FOLDER")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    print(write_random_adapter(options.backbone, options.output))


if __name__ == "__main__":
    main()
