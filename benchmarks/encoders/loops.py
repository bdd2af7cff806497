"""What the encoders benchmark runs, each measurement in a process of its own.

Legend: B texts of a batch, L padded length, N decoded tokens, H hidden size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.encode.loops import NAIVE_BATCH, encode_naively
from benchmarks.measuring import serve_child
from diffretriever.collections import Passage, open_collection
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, Bm25Retriever

_WARM_UP = 5


def measure(
    family: str, backbone: str, vectors: int, n_queries: int, n_passages: int, *, plain: bool
) -> dict[str, float]:
    """Return the median latency of a query alone, in ms, and passages per second, on one thread."""
    torch.set_num_threads(1)
    encoder = _encoder(family, backbone, vectors)
    passages = [record for record in open_collection("pydoc").records() if isinstance(record, Passage)]
    texts = encoder.preparer.prepare_passages([p.title for p in passages], [p.text for p in passages])[:n_passages]
    queries = encoder.preparer.prepare_queries([p.text[:60] for p in passages[: n_queries + _WARM_UP]])
    encode: Callable[[Sequence[PreparedText]], object] = partial(_plainly, encoder) if plain else encoder.encode
    times = [_seconds(encode, [query]) for query in queries][_WARM_UP:]
    encode(texts[:2])
    return {"query_ms": 1000 * statistics.median(times), "rate": len(texts) / _seconds(encode, texts)}


def _encoder(method: str, backbone: str, vectors: int) -> Encoder:
    fields: dict[str, object] = {
        "method": method,
        "backbone": {"source": backbone, "dtype": "float32"},
        "content_words": {"subwords": True},
        "text": {"max_passage_tokens": 128},
    }
    if method == "masked":
        fields["budget"] = f"q{vectors}p{vectors}"
    else:
        fields |= {"max_tokens": vectors, "stop": "cap"}
    config = RETRIEVER_ADAPTER.validate_python(fields)
    assert not isinstance(config, Bm25Retriever)
    return load_encoder(config, "cpu")


def _seconds(encode: Callable[[Sequence[PreparedText]], object], texts: Sequence[PreparedText]) -> float:
    start = time.perf_counter()
    encode(texts)
    return time.perf_counter() - start


def _plainly(encoder: Encoder, texts: Sequence[PreparedText]) -> None:
    if isinstance(encoder, MaskedEncoder):
        encode_naively(encoder, texts)
        return
    assert isinstance(encoder, GeneratedEncoder)
    for start in range(0, len(texts), NAIVE_BATCH):
        _generate(encoder, texts[start : start + NAIVE_BATCH])


@torch.inference_mode()
def _generate(encoder: GeneratedEncoder, texts: Sequence[PreparedText]) -> None:
    """Let transformers generate from whole prompts, padded on the left, and keep the last layer's states."""
    longest = max(len(text.input_ids) for text in texts)
    ids_BL = torch.full((len(texts), longest), encoder.backbone.vocabulary.pad_token_id)
    mask_BL = torch.zeros_like(ids_BL)
    for row, text in enumerate(texts):
        ids_BL[row, longest - len(text.input_ids) :] = torch.from_numpy(text.input_ids.copy())
        mask_BL[row, longest - len(text.input_ids) :] = 1
    tokens = encoder.config.max_tokens
    encoder.backbone.model.generate(
        ids_BL,
        attention_mask=mask_BL,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_hidden_states=True,
        output_logits=True,
        pad_token_id=encoder.backbone.vocabulary.pad_token_id,
    )


if __name__ == "__main__":
    serve_child({"measure": measure})
