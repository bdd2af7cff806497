"""The training loop of one worker: forward and backward passes, steps, metrics, checkpoints. It does not use Ray.

Legend: Q queries, P candidates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.backbones.flops import Matrices, reached_flops
from diffretriever.core.files import understood
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.schemas.training import WARMUP, Recipe
from diffretriever.training.batches import Batches, MicroBatch, known_answers
from diffretriever.training.data.seeds import seed_torch
from diffretriever.training.engine import Engine
from diffretriever.training.gather import Workers, gather
from diffretriever.training.objective import Outcome, objective
from diffretriever.training.trainable import encode_with_gradients

Record = dict[str, float]
"""A line of the metrics file: `step`, and either the fields of `StepMetrics` or `validation/MODE` measures."""

_STEP_FILE = "step.txt"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of a step; losses are means over workers and micro-batches."""

    step: int
    """Number of completed steps, including this one."""
    loss: float
    dense_loss: float
    sparse_loss: float
    distillation_loss: float
    accuracy: float
    """Share of queries whose positive has the highest dense score among the counted candidates."""
    gradient_norm: float
    """Norm before clipping."""
    learning_rate: float
    tokens_per_second: float
    """Tokens of all workers without padding."""
    utilisation: float
    """Model FLOPs utilisation, averaged over workers: the share of the device's matrix-product rate; see
    `backbones.flops`."""


class Trainer:
    """Trains an encoder step by step. Each worker runs one, with its own micro-batches."""

    def __init__(
        self, encoder: BackboneEncoder, batches: Batches, engine: Engine, recipe: Recipe, workers: Workers
    ) -> None:
        """Prepare for step 0; `engine` optimises the encoder's trainable parameters."""
        self.encoder, self.batches, self.engine, self.recipe, self.workers = encoder, batches, engine, recipe, workers
        self._matrices = Matrices.of(encoder.backbone)
        self._reached = reached_flops(encoder.backbone.device, encoder.backbone.dtype)
        self.step = 0
        """Number of completed steps."""

    def run(self) -> Iterator[StepMetrics]:
        """Run the remaining steps and yield the metrics of each, with the model in evaluation mode.

        Raises:
            ValueError: A loss or a gradient is not a finite number.
        """
        for step, micro_batches in self.batches.prefetched(self.step):
            started = time.perf_counter()
            self.encoder.backbone.model.train()
            outcomes = []
            for micro_batch in micro_batches:
                outcome = self._outcome(step, micro_batch)
                # Each worker has the loss of all queries, and engines average gradients; see `gather`.
                self.engine.backward(outcome.loss * self.workers.total / len(micro_batches))
                outcomes.append(torch.stack(outcome).detach())
            rate = learning_rate(self.recipe.learning_rate, step, self.batches.total_steps)
            norm = self.engine.step(rate)
            self.encoder.backbone.model.eval()
            if not math.isfinite(norm):
                raise ValueError(self._broken("the gradient's norm", norm, step, micro_batches))
            self.step = step + 1
            yield self._metrics(outcomes, norm, rate, micro_batches, started)

    def save(self, folder: Path) -> None:
        """Write a checkpoint to `folder`. It needs no random state: that follows from seed and step."""
        self.engine.save(folder)
        if self.workers.rank == 0:
            (folder / _STEP_FILE).write_text(f"{self.step}\n", "utf-8")

    def load(self, folder: Path) -> None:
        """Resume from a checkpoint that `save` wrote, bit for bit."""
        self.engine.load(folder)
        with understood(folder / _STEP_FILE, "remove this checkpoint to resume from the previous one"):
            self.step = int((folder / _STEP_FILE).read_text("utf-8"))

    def _outcome(self, step: int, micro_batch: MicroBatch) -> Outcome:
        """Return the loss of all workers' micro-batches of this number; only this worker's texts have gradients."""
        seed_torch("dropout", self.recipe.seed, step, micro_batch.number)
        queries = gather(encode_with_gradients(self.encoder, micro_batch.queries), self.workers)
        passages = gather(encode_with_gradients(self.encoder, micro_batch.passages), self.workers)
        answers_QP = None
        if self.recipe.equal_passages == "mask":
            keys = micro_batch.passage_keys.to(queries.vectors_BKH.device)
            answers_QP = known_answers(micro_batch.answers, keys, self.workers)
        outcome = objective(queries, passages, self.recipe, answers_QP)
        if not torch.isfinite(outcome.loss):
            raise ValueError(self._broken("the loss", outcome.loss.item(), step, [micro_batch]))
        return outcome

    def _broken(self, quantity: str, value: float, step: int, micro_batches: list[MicroBatch]) -> str:
        queries = ", ".join(query for micro_batch in micro_batches for query in micro_batch.query_ids)
        return (
            f"{quantity} is {value} at step {step}, with these queries on worker {self.workers.rank}: {queries}: check "
            "their texts, lower --learning-rate, or set the retriever's backbone.dtype to float32, and resume from the "
            "last checkpoint"
        )

    def _metrics(
        self, outcomes: list[Tensor], norm: float, rate: float, micro_batches: list[MicroBatch], started: float
    ) -> StepMetrics:
        lengths = np.concatenate([micro_batch.lengths for micro_batch in micro_batches])
        # With an adapter on slots only, text tokens have no backward pass; that of the few slots is not counted.
        slots_only = self.encoder.backbone.adapts_slots_only
        flops_of = self._matrices.forward_flops if slots_only else self._matrices.training_flops
        busy = flops_of(lengths) / self._reached
        means = torch.stack(outcomes).mean(0)
        values = torch.cat([means, means.new_tensor([busy, lengths.sum()])])
        if self.workers.total > 1:
            dist.all_reduce(values)
            values[:-1] /= self.workers.total
        loss, dense, sparse, distillation, accuracy, busy, tokens = values.tolist()
        seconds = time.perf_counter() - started
        figures = (loss, dense, sparse, distillation, accuracy, norm, rate)
        return StepMetrics(self.step, *figures, tokens / seconds, busy / seconds)


def learning_rate(peak: float, step: int, total_steps: int) -> float:
    """Return the learning rate of `step`, counted from 0: linear warm-up, then cosine decay to zero."""
    warmup_steps = math.ceil(WARMUP * total_steps)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
