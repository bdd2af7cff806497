"""The loops that benchmarks/encode.py compares, each run in a process of its own."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from unittest import mock

import torch

from benchmarks._common import Sample, peak_mb, serve_child, watched
from benchmarks._naive import NAIVE_BATCH, check_same, encode_naively
from diffretriever.backbones.base import BackboneOutput
from diffretriever.collections import Passage, open_collection
from diffretriever.encoders import load_encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.presets import load_retriever
from schemas.retriever import MaskedRetriever

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
# Ray's workers yield to other programs. So does the loop they are held against, or a busy machine would slow only one.
_RAY_NICENESS = 15


def chosen_dtype() -> str:
    """Return the precision that `auto` finds here: asked once, so that all runs use the same."""
    from diffretriever.backbones.device import resolve_dtype

    return str(resolve_dtype("auto", torch.device("cpu"))).removeprefix("torch.")


def bare(collection: str, retriever: str, rows: int) -> Sample:
    """Forward passes and nothing else, on the very batches of a job; the first block is warm-up, as in a job's rate."""
    os.nice(_RAY_NICENESS)
    encoder, texts = _prepared(collection, retriever)
    blocks = [texts[start : start + rows] for start in range(0, len(texts), rows)]
    calls = [_forward_calls(encoder, block) for block in blocks]
    _forward(encoder, calls[0])
    seconds = _seconds(lambda: [_forward(encoder, block) for block in calls[1:]])
    return Sample(rate=(len(texts) - len(blocks[0])) / seconds, peak_mb=peak_mb())


def job(collection: str, retriever: str, rows: int) -> Sample:
    """The encode job with one encoder of one thread: its own steady rate, the peak of its encoder's process."""
    # Ray starts its processes by fork and exec, never by fork alone, which is what Lance warns of.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    from diffretriever.pipelines.encode import encode_collection
    from schemas.encode import EncodeJob

    with TemporaryDirectory() as folder:
        config = EncodeJob(
            collection=collection,
            retriever=retriever,
            index=f"{folder}/index",
            rows_per_block=rows,
            ray_address="local",
            encoders=1,
            gpus_per_encoder=0,
        )
        with watched("EncodeBlocks") as peaks:
            summary = encode_collection(config)
    return Sample(rate=summary.steady_rate, peak_mb=max(peaks))


def chosen(collection: str, retriever: str) -> Sample:
    """This platform's encoder: batches by a token budget, logits of content ids at the slots."""
    encoder, texts = _prepared(collection, retriever)
    encoder.encode(texts[:NAIVE_BATCH])
    return Sample(rate=len(texts) / _seconds(lambda: encoder.encode(texts)), peak_mb=peak_mb())


def naive(collection: str, retriever: str) -> Sample:
    """Batches of 16 in input order, logits of the whole vocabulary at every position; same results, checked."""
    encoder, texts = _prepared(collection, retriever)
    encode_naively(encoder, texts[:NAIVE_BATCH])
    sample = Sample(rate=len(texts) / _seconds(lambda: encode_naively(encoder, texts)), peak_mb=peak_mb())
    check_same(encoder.encode(texts[:4]), encode_naively(encoder, texts[:4]), encoder.backbone.vocab_size)
    return sample


def _prepared(collection: str, retriever: str) -> tuple[MaskedEncoder, list[PreparedText]]:
    torch.set_num_threads(1)
    config = load_retriever(retriever)
    assert isinstance(config, MaskedRetriever)
    encoder = load_encoder(config, "cpu")
    assert isinstance(encoder, MaskedEncoder)
    passages = [record for record in open_collection(collection).records() if isinstance(record, Passage)]
    return encoder, encoder.preparer.prepare_passages([p.title for p in passages], [p.text for p in passages])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _forward_calls(encoder: MaskedEncoder, texts: list[PreparedText]) -> list[Call]:
    """Return the arguments with which encoding `texts` calls the model."""
    calls: list[Call] = []

    def record(*args: torch.Tensor, **named: Any) -> BackboneOutput:
        calls.append((args, named))
        batch, slots, tokens = *args[2].shape, args[3].shape[-1]
        return BackboneOutput(
            torch.zeros(batch, slots, encoder.backbone.hidden_size), torch.zeros(batch, slots, tokens)
        )

    with mock.patch.object(encoder.backbone, "forward", record):
        encoder.encode(texts)
    return calls


@torch.inference_mode()
def _forward(encoder: MaskedEncoder, calls: list[Call]) -> None:
    for args, named in calls:
        encoder.backbone.forward(*args, **named)


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (chosen_dtype, bare, job, chosen, naive)})
