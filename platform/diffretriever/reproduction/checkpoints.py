"""The paper's four backbones by the shapes of their published checkpoints: parameters and bytes, nothing loaded."""

from __future__ import annotations

import math
from importlib import import_module

from diffretriever import backbones
from diffretriever.backbones.published import Published, Shapes, Sizes

_DREAM, _LLADA = "Dream-org/Dream-v0-Instruct-7B", "GSAI-ML/LLaDA-8B-Instruct"
_LLAMA3, _QWEN = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
_SIZES = {
    _DREAM: Sizes(3584, 28, 28, 4, 18944, 152064, 131072),
    _LLADA: Sizes(4096, 32, 32, 32, 12288, 126464, 4096),
    _LLAMA3: Sizes(4096, 32, 32, 8, 14336, 128256, 8192),
    _QWEN: Sizes(3584, 28, 28, 4, 18944, 152064, 32768),
}
FAMILIES = {_DREAM: "dream", _LLADA: "llada", _LLAMA3: "llama3", _QWEN: "qwen2"}
"""What the presets name → the file of its family in `backbones`."""
_CLASSES = {path.partition(":")[0].rpartition(".")[2]: path for path in backbones.FAMILIES.values()}
_BF16 = 2


def published_of(source: str) -> Published:
    """Return how checkpoints of the family of one of `FAMILIES` look."""
    module, name = _CLASSES[FAMILIES[source]].split(":")
    published: Published = getattr(import_module(module), name).published
    return published


def shapes_of(source: str) -> Shapes:
    """Return the tensors of one of `FAMILIES`."""
    return published_of(source).shapes(_SIZES[source])


def size_of(source: str) -> Sizes:
    """Return the sizes of one of `FAMILIES`."""
    return _SIZES[source]


def parameters_of(source: str) -> int:
    """Return how many numbers the weights of one of `FAMILIES` are."""
    return sum(map(math.prod, shapes_of(source).values()))


def weight_bytes(source: str) -> int:
    """Return the bytes of the weights of one of `FAMILIES` in bf16, as they are published."""
    return _BF16 * parameters_of(source)
