"""States and logits equal those of transformers' models, one text at a time without padding.

Legend: L length, P positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, LlamaForCausalLM, Qwen2ForCausalLM

from diffretriever.backbones.loader import load_backbone
from tests.backbones.helpers import FolderOf, pad, texts

LAST_P = torch.tensor([7, 3, 0])
LLADA = {
    "transformer.wte": "embed_tokens",
    "transformer.ln_f": "norm",
    "model.transformer.ff_out": "lm_head",
    "transformer.blocks": "layers",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "attn_out": "self_attn.o_proj",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
"""Parts of LLaDA's names → Llama's."""


def reference_of(family: str, folder: Path) -> Any:
    if family in {"bert", "modernbert"}:
        return AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    if family in {"qwen2", "llama3"}:
        return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tensors = load_file(folder / "model.safetensors")
    if family == "llada":
        for theirs, llamas in LLADA.items():
            tensors = {name.replace(theirs, llamas): tensor for name, tensor in tensors.items()}
    theta, epsilon, kv_heads = (500000.0, 1e-5, 4) if family == "llada" else (1000000.0, 1e-6, 2)
    model_class: Any = LlamaForCausalLM if family == "llada" else Qwen2ForCausalLM
    config = model_class.config_class(
        vocab_size=len(tensors["lm_head.weight"]),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        intermediate_size=128,
        rms_norm_eps=epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        attn_implementation="eager",
    )
    model = model_class(config).eval()
    model.load_state_dict(tensors)
    return model


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
@torch.inference_mode()
def test_states_and_logits(family: str, attention: str, folder_of: FolderOf) -> None:
    reference = reference_of(family, folder_of(family))
    backbone = load_backbone(folder_of(family), device="cpu", attention=attention)
    rows = texts(40, 8, 23)
    for side in ("left", "right"):
        ids_BL, mask_BL, last_B1 = pad(rows, side=side)
        hidden_BPH, logits_BPV = backbone.forward(ids_BL, mask_BL, last_B1 - LAST_P)
        for row, ids_L in enumerate(rows):
            length = len(ids_L)
            # Dream and LLaDA are causal models of transformers whose mask hides nothing.
            everything = torch.zeros(1, 1, length, length) if family in {"dream", "llada"} else None
            states_LH = reference.base_model(ids_L[None], attention_mask=everything).last_hidden_state[0]
            logits_LV = reference(ids_L[None], attention_mask=everything).logits[0]
            own_P = length - 1 - LAST_P
            torch.testing.assert_close(hidden_BPH[row], states_LH[own_P], atol=2e-5, rtol=0)
            torch.testing.assert_close(logits_BPV[row], logits_LV[own_P], atol=2e-5, rtol=0)
