"""Random checkpoints and adapters in the published formats, for tests, dry runs and benchmarks.

`FAMILIES` describes the formats. The modules `checkpoints`, `adapters` and `on_device` write and draw models in them.
"""

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
"""Name of a model family → its published format."""
