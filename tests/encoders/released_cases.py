"""An adapter's folder as the authors publish it, and the retriever that fits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffretriever.backbones import load_vocabulary
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import BackboneConfig, MaskedRetriever, PromptConfig
from diffretriever.testing.adapters import write_random_adapter

SYSTEM = "You are an AI assistant that can understand human language."
TEMPLATES = {
    "dream": (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llada": (
        (
            f"<|startoftext|><|start_header_id|>system<|end_header_id|>\n\n{SYSTEM}<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n"
        ),
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}


def _released_config(family: str, folder: Path) -> dict[str, Any]:
    """The file as the authors' training writes it for K = (2, 3), its prompts spelled out."""
    vocabulary = load_vocabulary(folder)
    before, after = TEMPLATES[family]
    prompts = {}
    for side, name in (("query", "Query"), ("passage", "Passage")):
        request = (
            f'". Use a few words to represent the {side} in a retrieval task. Make sure your words are in lowercase.'
        )
        for part, text in (("prefix", f'{before}{name}: "'), ("suffix", f'{request}{after}The words are: "')):
            prompts[f"{side}_{part}_ids"] = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    return {
        "model_type": family,
        "mask_token_id": vocabulary.mask_token_id,
        "hidden_size": 32,
        "max_length": 156,
        "n_gen_tokens": 3,
        "n_gen_q_tokens": 2,
        "n_gen_p_tokens": 3,
        "temperature": 0.01,
        "num_denoise_steps": 1,
        "normalize": True,
        "n_tail": 3,
        "use_k_adapter": False,
        "use_k_pre_encoder": False,
        **prompts,
    }


def release(family: str, backbone: Path, folder: Path) -> MaskedRetriever:
    """Write a random adapter with its retriever_config.json, and return the config of the retriever that fits it."""
    write_random_adapter(backbone, folder)
    (folder / "retriever_config.json").write_text(json.dumps(_released_config(family, backbone)))
    place = BackboneConfig(source=str(backbone), dtype="float32", adapter=str(folder))
    return MaskedRetriever(backbone=place, budget=Budget(2, 3), prompt=PromptConfig(colon=True))
