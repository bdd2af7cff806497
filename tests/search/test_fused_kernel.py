"""The GPU kernel in Triton's interpreter computes the maxima of torch, and compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is installed with torch for GPUs")

SAME_MAXIMA = """
import numpy as np
import torch

from diffretriever.search.dense.fused import largest_products
from diffretriever.search.dense.resident import DeviceCodes, _largest_products
from diffretriever.vectors.maxsim import Codes

rng = np.random.default_rng(0)
for hidden_size, query_vectors, counts in (
    (384, 4, [16] * 9),
    (16, 1, [3, 0, 20, 1, 7]),
    (100, 70, [5, 0, 0, 2]),
    (64, 9, [300, 1]),
):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    codes = Codes(
        rng.integers(-127, 128, (offsets[-1], hidden_size)).astype(np.int8),
        rng.random(offsets[-1]).astype(np.float32),
        offsets,
    )
    zeros = np.zeros(len(counts), np.float32)
    on_device = DeviceCodes.copy(codes, zeros, zeros, torch.device("cpu"))
    limbs = torch.from_numpy(rng.integers(-127, 128, (query_vectors, 2, hidden_size)).astype(np.int8))
    torch.testing.assert_close(largest_products(on_device, limbs), _largest_products(on_device, limbs))
"""

COMPILES = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from diffretriever.search.dense.fused import _kernel

types = {"codes": "*i8", "scales": "*fp32", "offsets": "*i64", "limbs": "*i8", "best": "*fp32"}
for capability in (80, 90):
    for hidden_size, rows, vectors in ((384, 16, 8), (3584, 32, 64), (100, 1, 8)):
        fixed = dict(H=hidden_size, PASSAGES=128 // rows, ROWS=rows, VECTORS=vectors, COLUMNS=128, BASE=254)
        signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in _kernel.arg_names}
        constants = {(_kernel.arg_names.index(name),): value for name, value in fixed.items()}
        source = ASTSource(_kernel, signature, constants)
        assert compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 8}).asm["cubin"]
"""


def test_the_kernel_computes_the_maxima_of_the_cpu() -> None:
    # The interpreter is chosen when Triton is imported.
    subprocess.run([sys.executable, "-c", SAME_MAXIMA], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def test_the_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """The interpreter accepts more than the compiler, which needs no GPU."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILES], check=True, env=environment)
