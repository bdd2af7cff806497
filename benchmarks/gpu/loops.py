"""What is measured on the device, each loop in a process of its own, whose memory is then all there is on the device.

Legend: N vectors, H hidden size, P passages, M vectors of queries.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import profiler as torch_profiler

from benchmarks.gpu.models import Size, encoder_over, made, retriever_of, texts_of, written_texts
from benchmarks.measuring import serve_child
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.device import peak_memory, resolve_device
from diffretriever.backbones.float8 import use_float8
from diffretriever.backbones.flops import Matrices, reached_flops
from diffretriever.backbones.packed import KERNEL
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.search.dense.resident import DeviceCodes, DeviceQueries

Figures = dict[str, float | str]

_BUDGET = 16_384
"""Tokens of a batch."""
_PLAIN_ROWS = 64
"""Texts of a batch of the plainest loop."""
_TOGETHER = 32
"""Queries of a batch, as a server's clients fill one."""
_SEARCHED_QUERIES = (1, 64)
_SEARCHED_SLOTS, _SEARCHED_BEST = 4, 100
_PROFILED_PASSAGES: dict[Size, int] = {"published": 64, "tiny": 2}
_PROFILED_ROWS, _PROFILED_NAME = 12, 80
_MB = 1e6


def encoding(
    family: str, size: Size, device: str, lengths: list[int], slots: list[int], forms: list[str], tokens: int
) -> list[Figures]:
    """Return the rates of encoding passages by a family's random model, for each form, number of slots and length.

    Models without a mask token are read at their last token.

    Args:
        family: of the model.
        size: of the model.
        device: `auto`, `cpu` or `cuda`.
        lengths: mean tokens of the passages' own.
        slots: K_p.
        forms: of `FORMS`, in which they are measured.
        tokens: of all passages of a measurement, with prompts and slots.
    """
    with TemporaryDirectory() as folder:
        backbone = made(family, size, Path(folder), device)
        retrievers = (
            {0: retriever_of("pooled", Path(folder), pooling="last", append_eos=True)}
            if backbone.vocabulary.mask_token_id is None
            else {count: retriever_of("masked", Path(folder), budget=f"q{count}p{count}") for count in slots}
        )
        reached = reached_flops(backbone.device, torch.bfloat16)
        # Before any form puts other maps in the place of the matrices.
        matrices = Matrices.of(backbone)
        found: list[Figures] = []
        for form in forms:
            FORMS[form](backbone)
            for count, retriever in retrievers.items():
                encoder = encoder_over(backbone, retriever)
                encoder.tokens_per_batch = _BUDGET
                for mean in lengths:
                    texts = texts_of(encoder, mean, tokens)
                    figures = _rates(encoder, texts, form)
                    flops = matrices.forward_flops([len(text.input_ids) for text in texts])
                    figures["utilisation"] = flops / figures.pop("seconds") / reached
                    found.append({"family": family, "form": form, "slots": count, "tokens": mean, **figures})
    return found


def _padded(backbone: Backbone) -> None:
    backbone.model.set_attn_implementation("sdpa")


def _packed(backbone: Backbone) -> None:
    backbone.model.set_attn_implementation(KERNEL)


def _compiled(backbone: Backbone) -> None:
    _packed(backbone)
    backbone.compile_layers()


FORMS: dict[str, Callable[[Backbone], None]] = {
    "padded": _padded,
    "similar": _padded,
    "packed": _packed,
    "compiled": _compiled,
    "float8": use_float8,
}
"""Put a backbone into a form of computing; each is measured after those before it.

`padded`: batches of 64 texts in the order that they come in. `similar`: of texts of similar lengths. `packed`: texts in
one row without pads. `compiled`: that, with compiled layers. `float8`: that, with layers in 8 bits.
"""


def _rates(encoder: BackboneEncoder, texts: list[PreparedText], form: str) -> dict[str, float]:
    encode = _in_order if form == "padded" else BackboneEncoder.encode
    # Texts of all lengths, so that what is set up once for a shape is there; compiling takes some of each shape.
    encode(encoder, texts if form == "compiled" else texts[: max(1, len(texts) // 4)])
    if encoder.facts.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    encode(encoder, texts)
    # The representations are on the CPU: nothing is left to wait for.
    seconds = time.perf_counter() - start
    return {
        "passages/s": len(texts) / seconds,
        "tokens/s": sum(len(text.input_ids) for text in texts) / seconds,
        "peak MB": peak_memory(encoder.facts.device) / _MB,
        "seconds": seconds,
    }


def _in_order(encoder: BackboneEncoder, texts: Sequence[PreparedText]) -> None:
    for start in range(0, len(texts), _PLAIN_ROWS):
        encoder.encode(texts[start : start + _PLAIN_ROWS])


def checkpoint(family: str, size: Size, device: str, folder: str) -> None:
    """Make a random model on the device and write it as a checkpoint, for loops that load one."""
    from diffretriever.testing.on_device import write_checkpoint

    write_checkpoint(made(family, size, Path(folder), device), Path(folder))


def bare(folder: str, device: str, passages: int, words: int, slots: int) -> Figures:
    """Return the rate of encoding texts of about so many words by a checkpoint, in one process and nothing else."""
    from diffretriever.encoders import load_encoder

    encoder = load_encoder(retriever_of("masked", Path(folder), budget=f"q{slots}p{slots}"), device)
    texts = encoder.preparer.prepare_passages([""] * passages, written_texts(passages, words))
    encoder.encode(texts[: max(1, passages // 4)])
    start = time.perf_counter()
    encoder.encode(texts)
    return {"passages/s": passages / (time.perf_counter() - start), "tokens a batch": encoder.tokens_per_batch}


def job(folder: str, device: str, passages: int, words: int, slots: int) -> Figures:
    """Return the steady rate of the encode job on the same texts, with one encoder, and what it says of its device."""
    from diffretriever.pipelines.encode import encode_collection
    from diffretriever.schemas.encode import EncodeJob

    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        lines = (
            json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(written_texts(passages, words))
        )
        (place / "corpus.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        retriever = place / "retriever.yaml"
        # JSON is YAML.
        retriever.write_text(
            retriever_of("masked", Path(folder), budget=f"q{slots}p{slots}").model_dump_json(), "utf-8"
        )
        on_gpu = resolve_device(device).type == "cuda"
        summary = encode_collection(
            EncodeJob(
                collection=str(place / "corpus.jsonl"),
                retriever=str(retriever),
                index=str(place / "index"),
                encoders=1 if on_gpu else None,
                accelerate=False,
            )
        )
    return {
        "passages/s": summary.steady_rate or summary.encoded / summary.seconds,
        "device's share": summary.device_share or 0.0,
        "peak MB": (summary.peak_memory or 0) / _MB,
    }


def queries(size: Size, device: str, asked: int, *, compiled: bool) -> list[Figures]:
    """Return the milliseconds of encoding queries: slots, plainly and by recorded passes, and PromptReps' tokens.

    Args:
        size: of the models.
        device: `auto`, `cpu` or `cuda`.
        asked: how many queries, or batches of them.
        compiled: whether slots are measured with compiled layers too, recorded.
    """
    found: list[Figures] = []
    with TemporaryDirectory() as folder:
        backbone = made("dream", size, Path(folder) / "dream", device)
        _packed(backbone)
        encoder = encoder_over(backbone, retriever_of("masked", Path(folder) / "dream", budget="q4p16"))
        found.append({"name": "DiffRetriever, Dream, K_q = 4", **_milliseconds(encoder, asked)})
        encoder.record_passes()
        found.append({"name": "the same, recorded", **_milliseconds(encoder, asked)})
        together = f"the same, {_TOGETHER} at a time"
        found.append({"name": together, **_milliseconds(encoder, asked, together=_TOGETHER)})
        if compiled:
            encoder.compile_layers()
            encoder.record_passes()
            found.append({"name": "the same, compiled and recorded", **_milliseconds(encoder, asked)})
        del backbone, encoder
        backbone = made("qwen2", size, Path(folder) / "qwen2", device)
        _packed(backbone)
        for tokens in (4, 20):
            # Random weights seldom close the quote, but here they never may.
            retriever = retriever_of("generated", Path(folder) / "qwen2", max_tokens=tokens, stop="cap")
            encoder = encoder_over(backbone, retriever)
            found.append({"name": f"PromptReps, Qwen2.5, N = {tokens}", **_milliseconds(encoder, asked)})
    return found


def _milliseconds(encoder: BackboneEncoder, asked: int, together: int = 1) -> Figures:
    texts = written_texts(asked * together, 8)
    batches = [texts[start : start + together] for start in range(0, len(texts), together)]
    for batch in batches:
        encoder.encode_queries(batch)
    times = []
    for batch in batches:
        start = time.perf_counter()
        encoder.encode_queries(batch)
        times.append(1e3 * (time.perf_counter() - start))
    median = statistics.median(times)
    return {"p50 ms": median, "p95 ms": float(np.quantile(times, 0.95)), "queries/s": 1e3 * together / median}


def profile(size: Size, device: str, *, compiled: bool) -> list[Figures]:
    """Return where the time goes of a query by slots, one by PromptReps' tokens, and batches of passages.

    Each has a row for the whole, by the clock and by what its kernels take, and rows for the operations that take most
    of the host's time and of the device's.

    Args:
        size: of the models.
        device: `auto`, `cpu` or `cuda`.
        compiled: whether passages are measured with compiled layers too, and with these in 8 bits.
    """
    found: list[Figures] = []
    with TemporaryDirectory() as folder:
        query, passages = written_texts(1, 8), written_texts(_PROFILED_PASSAGES[size], 150)
        backbone = made("qwen2", size, Path(folder) / "qwen2", device)
        generated = encoder_over(backbone, retriever_of("generated", Path(folder) / "qwen2", max_tokens=4, stop="cap"))
        found += _profiled("a query by PromptReps", partial(generated.encode_queries, query))
        del backbone, generated
        backbone = made("dream", size, Path(folder) / "dream", device)
        masked = encoder_over(backbone, retriever_of("masked", Path(folder) / "dream", budget="q4p16"))
        found += _profiled("a query by slots", partial(masked.encode_queries, query))
        for form in ("packed", "compiled", "float8") if compiled else ("packed",):
            FORMS[form](backbone)
            masked = encoder_over(backbone, masked.config)
            titles = [""] * len(passages)
            found += _profiled(f"passages, {form}", partial(masked.encode_passages, titles, passages))
    return found


def _profiled(what: str, work: Callable[[], object]) -> list[Figures]:
    # The first passes set up what stays.
    *_, seconds = _times(work, repeats=2)
    with torch_profiler.profile() as profiled:
        work()
    events = profiled.key_averages()
    kernels = [event for event in events if event.device_type.name == "CUDA"]
    of_kernels = sum(event.self_device_time_total for event in kernels) / 1e3
    rows: list[Figures] = [
        {"what": what, "where": "all", "name": "", "calls": "", "ms": 1e3 * seconds, "kernels ms": of_kernels}
    ]
    host = [event for event in events if event.device_type.name == "CPU"]
    for where, of, spent in (("device", kernels, "self_device_time_total"), ("host", host, "self_cpu_time_total")):
        for event in sorted(of, key=attrgetter(spent), reverse=True)[:_PROFILED_ROWS]:
            name, milliseconds = event.key[:_PROFILED_NAME], getattr(event, spent) / 1e3
            rows.append({"what": what, "where": where, "name": name, "calls": event.count, "ms": milliseconds})
    return rows


def search(device: str, shapes: list[tuple[int, int, int]]) -> list[Figures]:
    """Return the milliseconds that a query takes to be scored against codes in the device's memory, best 100 chosen.

    Args:
        device: `auto`, `cpu` or `cuda`.
        shapes: passages, vectors of each, and their dimensions.
    """
    place, found = resolve_device(device), list[Figures]()
    for passages, vectors, hidden_size in shapes:
        codes = _random_codes(passages, vectors, hidden_size, place)
        for count in _SEARCHED_QUERIES:
            drawn = np.random.default_rng(0).standard_normal((count * _SEARCHED_SLOTS, hidden_size))
            asked = DeviceQueries(drawn.astype(np.float32), np.arange(count + 1) * _SEARCHED_SLOTS, place)
            times = _times(partial(_best, asked, codes))
            name = f"{passages:,} x {vectors} x {hidden_size:,}, {count} at a time"
            found.append({"name": name, "ms a query": 1e3 * statistics.median(times) / count})
        del codes
    return found


def _best(asked: DeviceQueries, codes: DeviceCodes) -> torch.Tensor:
    return asked.scores(codes).topk(min(_SEARCHED_BEST, len(codes))).values.cpu()


def _random_codes(passages: int, vectors: int, hidden_size: int, device: torch.device) -> DeviceCodes:
    count = passages * vectors
    return DeviceCodes(
        torch.randint(-127, 128, (count, hidden_size), dtype=torch.int8, device=device),
        torch.full((count,), 1 / 127 / hidden_size**0.5, device=device),
        torch.arange(passages + 1, device=device) * vectors,
        vectors,
        torch.zeros(passages, device=device),
        torch.ones(passages, device=device),
    )


def _times(work: Callable[[], object], repeats: int = 7) -> Iterator[float]:
    work()
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        yield time.perf_counter() - start


def equality(device: str) -> list[Figures]:
    """Return how far small models' vectors on the device are from a CPU's, and its forms from each other."""
    found: list[Figures] = []
    for family in ("dream", "llada", "qwen2", "llama3"):
        with TemporaryDirectory() as folder:
            checkpoint(family, "tiny", "cpu", folder)
            found.append({"family": family, **_differences(Path(folder), device)})
    return found


def _differences(folder: Path, device: str) -> Figures:
    from diffretriever.backbones.loader import load_backbone

    has_mask = load_backbone(folder, device="cpu").vocabulary.mask_token_id is not None
    method: dict[str, Any] = {"method": "masked", "budget": "q4p4"} if has_mask else {"method": "pooled"}
    retriever = retriever_of(source=folder, **method)

    texts = written_texts(12, 30)

    def encoder(place: str, dtype: str, attention: str = "sdpa") -> BackboneEncoder:
        return encoder_over(load_backbone(folder, device=place, dtype=dtype, attention=attention), retriever)

    def passages(of: BackboneEncoder) -> np.ndarray:
        return of.encode_passages([""] * len(texts), texts).vectors_MH

    def queries(of: BackboneEncoder) -> np.ndarray:
        # As many as are recorded together.
        return of.encode_queries(texts[:4]).vectors_MH

    on_cpu, plain = passages(encoder("cpu", "float32")), encoder(device, "bfloat16")
    found: Figures = {
        "float32, device to CPU": _least_cosine(passages(encoder(device, "float32")), on_cpu),
        "bfloat16, device to CPU": _least_cosine(passages(plain), on_cpu),
        "packed to CPU": _least_cosine(passages(encoder(device, "bfloat16", "packed")), on_cpu),
        "float8 to CPU": _least_cosine(passages(encoder(device, "float8", "packed")), on_cpu),
    }
    before = queries(plain)
    plain.record_passes()
    return {**found, "recorded to plain": _least_cosine(queries(plain), before)}


def _least_cosine(left_NH: np.ndarray, right_NH: np.ndarray) -> float:
    # They are unit vectors, but for what halves round.
    left_NH, right_NH = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in map(np.float32, (left_NH, right_NH))
    )
    return float((left_NH * right_NH).sum(1).min())


def device_facts(device: str) -> dict[str, Any]:
    """Return what the device is called, and what dense products in bfloat16 reach on it, in TFLOP/s."""
    place = resolve_device(device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "this machine's CPU"
    return {"device": name, "reached TFLOP/s": reached_flops(place, torch.bfloat16) / 1e12}


if __name__ == "__main__":
    serve_child(
        {f.__name__: f for f in (device_facts, encoding, checkpoint, bare, job, queries, profile, search, equality)}
    )
