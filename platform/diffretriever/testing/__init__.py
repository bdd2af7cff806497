"""Random checkpoints and adapters in the published formats (`FAMILIES`), for tests, dry runs and benchmarks."""

from __future__ import annotations

from diffretriever.testing.decoders import DREAM, LLADA, LLAMA3, QWEN2
from diffretriever.testing.encoders import BERT, MODERNBERT

FAMILIES = {
    "dream": DREAM,
    "llada": LLADA,
    "qwen2": QWEN2,
    "llama3": LLAMA3,
    "bert": BERT,
    "modernbert": MODERNBERT,
}
"""Name of an architecture → its published format."""
