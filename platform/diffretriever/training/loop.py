"""The training loop: parts of a batch to gradients, gradients to a step, a report of each. It knows no Ray.

Gradient caching (Gao et al. 2021, arXiv 2101.06983) computes one loss over many parts in the memory of one part. All
parts are encoded without gradient; the loss over them gives the gradient with respect to each representation; each part
is then encoded again, with gradient, and that is passed on. The result is the gradient of the loss over all parts at
once, as long as a part gives the same both times: parts seed their own dropout.

Legend: Q queries, P candidates, B texts, K vectors of a text, T content ids of a text, H hidden size, C passages of a
query's own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diffretriever.backbones.flops import Matrices, reached_flops
from diffretriever.files import understood
from diffretriever.schemas.training import OWN_TOKENS, Recipe
from diffretriever.training.batches import Batches, Part, known_answers
from diffretriever.training.compression import Compression
from diffretriever.training.data.seeds import seed_torch
from diffretriever.training.engine import Engine
from diffretriever.training.gather import Workers, gather, gather_rows
from diffretriever.training.objective import Outcome, objective
from diffretriever.training.teacher import Teacher
from diffretriever.training.trainable import Taught, TextVectors, TrainableEncoder, join

Record = dict[str, float]
"""What a training reports: `step`, and either the fields of `StepMetrics` or `validation/MODE` measures."""

Encode = Callable[[], tuple[TextVectors, TextVectors]]
"""Represents the queries and the passages of a part; the same each time it is called."""

_STEP_FILE = "step.txt"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What a step says of itself; losses are means over the workers and parts of its batch."""

    step: int
    """Steps done, this one included."""
    loss: float
    dense_loss: float
    sparse_loss: float
    distillation_loss: float
    accuracy: float
    """Share of queries whose positive has the highest dense score of the candidates that count."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    tokens_per_second: float
    """Of all workers; padding does not count."""
    utilisation: float
    """Model FLOPs utilisation, the mean of the workers: the share of what large products in the weights' precision
    reach on the device; see `backbones.flops`."""


class Trainer:
    """Trains an encoder step by step; all workers run alike, each with its parts of the batch."""

    def __init__(
        self,
        encoder: TrainableEncoder,
        batches: Batches,
        engine: Engine,
        recipe: Recipe,
        workers: Workers,
        teacher: Teacher | None,
    ) -> None:
        """Get ready for step 0.

        Args:
            encoder: in training.
            batches: of this worker.
            engine: over the encoder's trainable parameters.
            recipe: of the training.
            workers: this one among all.
            teacher: whose scores or vectors are learnt from, if it is another retriever.
        """
        self.encoder, self.batches, self.engine, self.recipe, self.workers = encoder, batches, engine, recipe, workers
        self.teacher = teacher
        self.compression = Compression(encoder.encoder, batches, recipe, workers)
        self._matrices = Matrices.of(encoder.backbone)
        self._slots_only = encoder.backbone.adapts_slots_only
        self._reached = reached_flops(encoder.backbone.device, encoder.backbone.dtype)
        self.step = 0
        """Steps done."""

    def run(self) -> Iterator[StepMetrics]:
        """Yield after each of the steps that are left; the module is in evaluation mode then.

        Raises:
            ValueError: a loss or a gradient is not a finite number; the message names the step and queries.
        """
        for step, parts in self.batches.prefetched(self.step):
            started = time.perf_counter()
            self.compression.refit(step)
            self.encoder.backbone.model.train()
            outcomes = self._add_gradients(step, parts)
            rate = learning_rate(self.recipe, step, self.batches.total_steps)
            norm = self.engine.step(rate)
            self.encoder.backbone.model.eval()
            if not math.isfinite(norm):
                raise ValueError(self._broken("the gradient's norm", norm, step, parts))
            self.step = step + 1
            yield self._metrics(outcomes, norm, rate, parts, started)

    def save(self, folder: Path) -> None:
        """Write what a resumed training needs into `folder`: dropout, order and sampling follow from seed and step."""
        self.engine.save(folder)
        self.compression.save(folder)
        if self.workers.rank == 0:
            (folder / _STEP_FILE).write_text(f"{self.step}\n", "utf-8")

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, bit for bit."""
        self.engine.load(folder)
        self.compression.load(folder)
        with understood(folder / _STEP_FILE, "remove this checkpoint, and the training goes on from the one before"):
            self.step = int((folder / _STEP_FILE).read_text("utf-8"))

    def _add_gradients(self, step: int, parts: list[Part]) -> list[Outcome]:
        outcomes: list[Outcome] = []

        def loss_of(of_parts: list[Part], queries: TextVectors, passages: TextVectors) -> Tensor:
            outcomes.append(self._outcome(step, of_parts, queries, passages))
            # Every worker has the loss of all workers' queries, and gradients are averaged.
            everywhere = 1 if self.recipe.negatives == "local" else self.workers.total
            return outcomes[-1].loss * everywhere

        encodings = [partial(self._encode, step, part) for part in parts]
        if self.recipe.negatives == "cached":
            cached_backward(encodings, partial(loss_of, parts), self.engine.backward)
            return outcomes
        for part, encode in zip(parts, encodings, strict=True):
            loss = loss_of([part], *encode())
            self.engine.backward(loss / len(parts), part is parts[-1])
        return outcomes

    def _encode(self, step: int, part: Part) -> tuple[TextVectors, TextVectors]:
        seed_torch("dropout", self.recipe.seed, step, part.number)
        return self.encoder.encode(part.queries), self.encoder.encode(part.passages)

    def _outcome(self, step: int, parts: list[Part], queries: TextVectors, passages: TextVectors) -> Outcome:
        alone = Workers(0, 1)
        pool = alone if self.recipe.negatives == "local" else self.workers
        device = queries.vectors_BKH.device
        teacher_QC = answers_QP = None
        if parts[0].teacher_BC is not None:
            own_BC = torch.cat([part.teacher_BC for part in parts if part.teacher_BC is not None])
            teacher_QC = gather_rows(own_BC.to(device), pool)
        if self.recipe.equal_passages == "mask":
            keys = torch.cat([part.passage_keys for part in parts]).to(device)
            answers_QP = known_answers([answers for part in parts for answers in part.answers], keys, pool)
        queries, passages = gather(queries, pool), gather(self.compression.applied(passages), pool)
        taught = None if self.teacher is None else self.teacher.taught(parts, pool)
        if self.recipe.teacher == OWN_TOKENS:
            taught = Taught(queries.by_tokens(), passages.by_tokens())
        each = 1 + self.recipe.hard_negatives
        outcome = objective(queries, passages, teacher_QC, each, self.recipe, answers_QP, taught)
        if not torch.isfinite(outcome.loss):
            raise ValueError(self._broken("the loss", outcome.loss.item(), step, parts))
        return outcome

    def _broken(self, what: str, value: float, step: int, parts: list[Part]) -> str:
        queries = ", ".join(query for part in parts for query in part.query_ids)
        return (
            f"{what} is {value} at step {step}, with these queries on worker {self.workers.rank}: {queries}. Look at "
            "their texts, lower --learning-rate, or set the retriever's backbone.dtype to float32. The last checkpoint "
            "is from before."
        )

    def _metrics(
        self, outcomes: list[Outcome], norm: float, rate: float, parts: list[Part], started: float
    ) -> StepMetrics:
        lengths = np.concatenate([part.lengths for part in parts])
        # An adapter of slots alone has no gradients in the text; those of the few slots are not counted.
        flops_of = self._matrices.forward_flops if self._slots_only else self._matrices.training_flops
        busy = flops_of(lengths) / self._reached
        means = torch.stack([torch.stack(outcome.detached()) for outcome in outcomes]).mean(0)
        values = torch.cat([means, means.new_tensor([busy, lengths.sum()])])
        if self.workers.total > 1:
            dist.all_reduce(values)
            values[:-1] /= self.workers.total
        loss, dense, sparse, distillation, accuracy, busy, tokens = values.tolist()
        seconds = time.perf_counter() - started
        figures = (loss, dense, sparse, distillation, accuracy, norm, rate)
        return StepMetrics(self.step, *figures, tokens / seconds, busy / seconds)


def learning_rate(recipe: Recipe, step: int, total_steps: int) -> float:
    """Return the rate of step `step`, counted from 0: a linear warm-up, then half a cosine down to zero.

    The first step learns something, the last one almost nothing.
    """
    warmup_steps = math.ceil(recipe.warmup * total_steps)
    if step < warmup_steps:
        return recipe.learning_rate * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def cached_backward(
    parts: Sequence[Encode],
    loss_of: Callable[[TextVectors, TextVectors], Tensor],
    backward: Callable[[Tensor, bool], None],
) -> None:
    """Compute gradients of `loss_of` the queries and passages of all `parts`.

    Args:
        parts: at least one.
        loss_of: returns a scalar from the representations of all queries and all passages, in the parts' order.
        backward: called with a scalar for each part, whose gradients are to be added up, and whether it is the last.
    """
    with torch.no_grad():
        encoded = [encode() for encode in parts]
    leaves = [(queries.leaf(), passages.leaf()) for queries, passages in encoded]
    loss_of(join([queries for queries, _ in leaves]), join([passages for _, passages in leaves])).backward()
    for number, (encode, (queries, passages)) in enumerate(zip(parts, leaves, strict=True), start=1):
        queries_again, passages_again = encode()
        passed_on = _passed_on(queries_again, queries) + _passed_on(passages_again, passages)
        backward(passed_on, number == len(parts))


def _passed_on(again: TextVectors, leaf: TextVectors) -> Tensor:
    """Return a scalar whose gradient is that of the loss, by way of these representations."""
    pairs = [(again.vectors_BKH, leaf.vectors_BKH.grad), (again.weights_BT, leaf.weights_BT.grad)]
    return torch.stack([(tensor * gradient).sum() for tensor, gradient in pairs if gradient is not None]).sum()
