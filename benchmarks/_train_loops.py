"""The loops that benchmarks/train.py compares, each run in a process of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks._common import peak_mb, serve_child
from benchmarks._train_data import Clock, data_of, model_flops
from benchmarks._train_figures import Run, Setting
from benchmarks._train_plain import items_of, train_plainly
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.presets import load_retriever
from diffretriever.training.batches import Batches
from diffretriever.training.gather import Workers
from diffretriever.training.lora import target_modules
from diffretriever.training.session import Session, describe_training, open_session
from diffretriever.training.trainable import with_training_lengths
from schemas.retriever import MaskedRetriever

_ALONE = Workers(0, 1)


def ours(setting: dict[str, Any]) -> Run:
    """This platform's training: `open_session` and `Trainer.run`, which `training/worker.py` calls on every worker."""
    wanted = Setting.model_validate(setting)
    data, retriever = data_of(wanted), _retriever(wanted)
    manifest = describe_training(retriever, wanted.recipe, data, 1, wanted.device)
    session = open_session(data, manifest, wanted.device, _ALONE)
    clock = Clock(session.encoder.backbone.device)
    losses = []
    for metrics in session.trainer.run():
        clock.tick()
        losses.append(metrics.loss)
    lengths = _lengths(session.trainer.batches)
    return Run(
        tokens_per_second=lengths.sum() / clock.seconds,
        tokens_per_cpu_second=lengths.sum() / clock.cpu_seconds,
        peak_mb=_peak_mb(session.encoder.backbone.device),
        losses=losses,
        flops_per_second=_flops(session, lengths) / clock.seconds,
    )


def plain(setting: dict[str, Any]) -> Run:
    """The Trainer of transformers on the same texts in the same batches, which are ready before it starts."""
    wanted = Setting.model_validate(setting)
    retriever = _retriever(wanted)
    preparer = load_preparer(with_training_lengths(retriever, wanted.recipe))
    batches = Batches(data_of(wanted), preparer, wanted.recipe, _ALONE)
    items = items_of(batches, 1 + wanted.recipe.hard_negatives)
    encoder = load_encoder(retriever, wanted.device)
    assert isinstance(encoder, MaskedEncoder)
    clock = Clock(encoder.facts.device)
    losses = train_plainly(encoder, items, wanted.recipe, clock)
    tokens = _lengths(batches).sum()
    return Run(
        tokens_per_second=tokens / clock.seconds,
        tokens_per_cpu_second=tokens / clock.cpu_seconds,
        peak_mb=_peak_mb(encoder.facts.device),
        losses=losses,
    )


def _retriever(wanted: Setting) -> MaskedRetriever:
    torch.set_num_threads(1)
    retriever = load_retriever(str(wanted.retriever))
    assert isinstance(retriever, MaskedRetriever), "slots are what is measured"
    return retriever


def _flops(session: Session, lengths: np.ndarray) -> float:
    backbone, config = session.encoder.backbone, session.encoder.backbone.model.config
    matrices = sum(matrix.weight.numel() for matrix in target_modules(backbone, session.lora).values())
    trained = session.manifest.trainable or 0
    return model_flops(lengths, matrices, trained, config.num_hidden_layers, config.hidden_size)


def _lengths(batches: Batches) -> np.ndarray:
    """Tokens of each text of all measured steps."""
    parts = [part for step in range(1, batches.total_steps) for part in batches.parts(step)]
    return np.array([len(text.input_ids) for part in parts for text in (*part.queries, *part.passages)])


def _peak_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else peak_mb()


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (ours, plain)})
