"""The GPU's kernel, run by Triton's interpreter on a processor, finds the maxima that torch finds."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is installed with torch for GPUs")

PROGRAM = """
import numpy as np
import torch

from diffretriever.search.dense.fused import best_of_each_passage
from diffretriever.search.dense.resident import DeviceCodes, _best_of_each_passage
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
    torch.testing.assert_close(best_of_each_passage(on_device, limbs), _best_of_each_passage(on_device, limbs))
"""


def test_the_kernel_finds_the_same_maxima() -> None:
    # The interpreter is chosen when Triton is imported.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})
