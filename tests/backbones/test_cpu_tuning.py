"""CPU tuning changes no bit of the states."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import cast

import torch
from torch import nn

from diffretriever.backbones import cpu_tuning
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.flops import Matrices
from diffretriever.backbones.linear import BlockedLinear
from diffretriever.backbones.loader import load_backbone
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import MaskedRetriever
from tests.backbones.helpers import FolderOf, hidden, pad, texts


def _kinds(backbone: Backbone) -> set[type[nn.Module]]:
    layers = [layer for layer in backbone.model.base_model.modules() if isinstance(layer, nn.Linear | BlockedLinear)]
    return {type(layer) for layer in layers}


@torch.inference_mode()
def test_states_are_the_same_bit_for_bit(family: str, folder_of: FolderOf) -> None:
    plain, frozen = (load_backbone(folder_of(family), dtype="bfloat16", device="cpu") for _ in range(2))
    frozen.freeze()
    assert _kinds(frozen) == {BlockedLinear if cpu_tuning.computes_bfloat16() else nn.Linear}
    for lengths in ((5,), (30, 7, 12), (70, 70)):
        batch = pad(texts(*lengths), side="right")
        assert torch.equal(hidden(frozen, batch), hidden(plain, batch))
    assert Matrices.of(frozen).forward_flops([5, 30]) == Matrices.of(plain).forward_flops([5, 30])


def test_an_adapter_beside_the_weights_keeps_its_own() -> None:
    retriever = load_retriever("diffretriever-minilm")
    assert isinstance(retriever, MaskedRetriever)
    place = retriever.backbone.model_copy(update={"dtype": "bfloat16"})
    retriever = retriever.model_copy(update={"backbone": place})
    frozen, trainable = (
        cast("BackboneEncoder", load_encoder(retriever, "cpu", trainable=trainable)) for trainable in (False, True)
    )
    assert _kinds(trainable.backbone) == {nn.Linear}
    adapted = [layer for layer in frozen.backbone.model.base_model.modules() if hasattr(layer, "lora_A")]
    assert adapted
    assert all(type(layer.lora_A["default"]) is nn.Linear for layer in adapted)
    texts = ["what is a slot", "", "a passage of several words " * 40]
    actual, expected = (encoder.encode_passages([""] * len(texts), texts) for encoder in (frozen, trainable))
    assert actual.to_arrow().equals(expected.to_arrow())


def test_threads_of_openmp_sleep_while_they_wait() -> None:
    code = "import os, diffretriever; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "PASSIVE"
