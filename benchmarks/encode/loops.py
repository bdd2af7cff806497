"""What the encode benchmark runs, each loop in a process of its own, and the plainest way to encode.

Legend: B texts of a batch, L padded length, K slots, H hidden size, V vocabulary, T impacts of a text.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch

from benchmarks.measuring import Sample, peak_mb, serve_child, watched
from diffretriever.backbones.base import BackboneOutput
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.source import resolve_source
from diffretriever.collections import Passage, open_collection
from diffretriever.encoders import load_encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.readout import unit_float16
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import MaskedRetriever, PooledRetriever
from diffretriever.vectors.representations import Representations, offsets_of
from diffretriever.vectors.sparse import impact_matrix

NAIVE_BATCH = 16
"""Texts at a time of the plainest loop."""
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
    from diffretriever.schemas.encode import EncodeJob

    with TemporaryDirectory() as folder:
        config = EncodeJob(
            collection=collection,
            retriever=retriever,
            index=f"{folder}/index",
            rows_per_block=rows,
            encoders=1,
            gpus_per_encoder=0,
        )
        with watched("EncodeBlocks") as peaks:
            summary = encode_collection(config)
    return Sample(rate=summary.steady_rate, peak_mb=max(peaks))


def checks(collection: str, retriever: str) -> dict[str, float]:
    """CPU seconds of encoding in this process, and those of checking that numbers are finite and summing up rows.

    One process counts both, so that a busy machine changes neither.
    """
    from diffretriever.front.index import Index
    from diffretriever.index import damage, writer

    spent = {"finite": 0.0, "checksums": 0.0}

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any) -> Any:
            start = time.thread_time()
            try:
                return work(*given)
            finally:
                spent[name] += time.thread_time() - start

        return counting

    with (
        TemporaryDirectory() as folder,
        mock.patch.object(writer, "refuse_to_write", counted("finite", damage.refuse_to_write)),
        mock.patch.object(damage, "row_checksums", counted("checksums", damage.row_checksums)),
    ):
        start = time.process_time()
        Index.create(f"{folder}/index", collection, retriever=retriever, on_ray=False)
        return {**spent, "encoding": time.process_time() - start}


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


def library(retriever: str, passages: int, words: int) -> Sample:
    """sentence-transformers on the same weights in bfloat16, in its own batches of 32; rates are by CPU time."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(
        str(resolve_source(_pooled(retriever).backbone.source)), device="cpu", model_kwargs={"dtype": torch.bfloat16}
    )
    texts = _long_texts(passages, words)
    return _by_cpu_time(lambda: model.encode(texts, show_progress_bar=False), passages)


def pooled(retriever: str, passages: int, words: int) -> Sample:
    """This platform's encoder on the same texts."""
    torch.set_num_threads(1)
    encoder = load_encoder(_pooled(retriever), "cpu")
    texts = _long_texts(passages, words)
    return _by_cpu_time(lambda: encoder.encode_passages([""] * passages, texts), passages)


def _pooled(retriever: str) -> PooledRetriever:
    config = load_retriever(retriever)
    assert isinstance(config, PooledRetriever)
    return config


def _long_texts(passages: int, words: int) -> list[str]:
    """Return so many consecutive words of the built-in collection, from places drawn at random."""
    records = (record for record in open_collection("pydoc").records() if isinstance(record, Passage))
    every = " ".join(passage.text for passage in records).split()
    starts = np.random.default_rng(0).integers(0, len(every) - words, passages)
    return [" ".join(every[start : start + words]) for start in starts]


def _by_cpu_time(encode: Callable[[], object], passages: int) -> Sample:
    # What is set up for each shape is there then.
    encode()
    start = time.process_time()
    encode()
    return Sample(rate=passages / (time.process_time() - start), peak_mb=peak_mb())


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


def encode_naively(encoder: MaskedEncoder, texts: Sequence[PreparedText]) -> Representations:
    """Represent prepared texts as the plainest loop would, a fixed number at a time, in input order."""
    starts = range(0, len(texts), NAIVE_BATCH)
    return Representations.concatenate(
        [one for start in starts for one in _naive_batch(encoder, texts[start : start + NAIVE_BATCH])]
    )


@torch.inference_mode()
def _naive_batch(encoder: MaskedEncoder, texts: Sequence[PreparedText]) -> list[Representations]:
    ids_BL, mask_BL = pad_right([text.input_ids for text in texts], encoder.backbone.vocabulary.pad_token_id)
    every_BL = torch.arange(ids_BL.shape[1]).expand(ids_BL.shape)
    hidden_BLH, logits_BLV = encoder.backbone.forward(ids_BL, mask_BL, every_BL)
    results = []
    for text, hidden_LH, logits_LV in zip(texts, hidden_BLH, logits_BLV, strict=True):
        end = len(text.input_ids) - len(encoder.preparer.tail)
        results.append(_read_slots(text, hidden_LH[end - text.slots : end], logits_LV[end - text.slots : end]))
    return results


def _read_slots(text: PreparedText, hidden_KH: torch.Tensor, logits_KV: torch.Tensor) -> Representations:
    allowed_V = torch.zeros(logits_KV.shape[-1])
    allowed_V[text.content_ids] = 1
    weights_V = torch.log1p(torch.relu(logits_KV)).amax(0) * allowed_V
    ids_T = weights_V.nonzero().squeeze(1)
    tokens_K = logits_KV.masked_fill(allowed_V == 0, -torch.inf).argmax(-1)
    return Representations(
        vectors_MH=unit_float16(hidden_KH).numpy(),
        offsets=offsets_of([text.slots]),
        slot_tokens=(tokens_K if len(text.content_ids) else torch.full_like(tokens_K, -1)).int().numpy(),
        impact_ids=ids_T.int().numpy(),
        impact_weights=weights_V[ids_T].numpy(),
        impact_offsets=offsets_of([len(ids_T)]),
        n_tokens=np.array([text.n_tokens], np.int32),
    )


def check_same(ours: Representations, theirs: Representations, vocab_size: int) -> None:
    """Fail unless both say the same of the texts, but for the rounding of sums taken in another order."""
    np.testing.assert_allclose(ours.vectors_MH, theirs.vectors_MH, atol=2e-3)
    np.testing.assert_array_equal(ours.slot_tokens, theirs.slot_tokens)
    sparse = [impact_matrix(r.impact_ids, r.impact_weights, r.impact_offsets, vocab_size) for r in (ours, theirs)]
    assert sparse[0].nnz, "texts without impacts would compare nothing"
    assert abs(sparse[0] - sparse[1]).max() < 1e-4, "both loops must give the same impacts"


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (chosen_dtype, bare, job, checks, chosen, naive, library, pooled)})
