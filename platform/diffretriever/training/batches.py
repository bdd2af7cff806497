"""Prepares each worker's micro-batches on the CPU, while the previous step runs.

A batch is the same for any number of workers. It has micro-batches of `queries_per_device` queries, which are
distributed round-robin over the workers. Equal text keys (`examples.passage_key`, 64 bits as int64) identify false
negatives.

Legend: B queries of a micro-batch, C passages of a query, Q queries and P candidates of all workers, n keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffretriever.collections.records import Passage
from diffretriever.encoders.preparer import PreparedText, Preparer, join_title
from diffretriever.schemas.retriever import Side
from diffretriever.schemas.training import Recipe
from diffretriever.training.data.examples import Group, passage_key
from diffretriever.training.data.seeds import draw
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.gather import Workers, gather_rows


class MicroBatch(NamedTuple):
    """Queries with their passages, encoded in one pass."""

    number: int
    """Number of the micro-batch in its batch, over all workers."""
    query_ids: list[str]
    queries: list[PreparedText]
    passages: list[PreparedText]
    """C passages of each query, its positive first."""
    passage_keys: Tensor
    """int64 [B C], keys of the passages; see `known_answers`."""
    answers: list[Tensor]
    """For each query int64 [n], keys of the passages known to answer it, including its positive."""

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text with prompt and slots, without padding; int64."""
        return np.array([len(text.input_ids) for text in (*self.queries, *self.passages)])


class Batches:
    """One worker's micro-batches of a training."""

    def __init__(self, data: TrainingSet, preparer: Preparer, recipe: Recipe, workers: Workers) -> None:
        """Plan the batches. `preparer` must not be shared, because another thread uses it.

        Raises:
            ValueError: The set has fewer queries than one batch, or a batch cannot be divided evenly among workers.
        """
        self._data, self._preparer, self._recipe, self._workers = data, preparer, recipe, workers
        self._micro_batches_per_worker = recipe.micro_batches_per_worker(workers.total)
        self._per_epoch = len(data) // recipe.batch_queries
        if self._per_epoch == 0:
            raise ValueError(
                f"the training set has {len(data)} queries, fewer than a batch of {recipe.batch_queries}: "
                "lower --batch-queries, or add data"
            )
        self._order = lru_cache(maxsize=1)(data.order)
        self.total_steps: int = recipe.max_steps or self._per_epoch

    def prefetched(self, first: int) -> Iterator[tuple[int, list[MicroBatch]]]:
        """Yield each step from `first` on with its micro-batches, preparing the next step in a thread."""
        if first >= self.total_steps:
            return
        with ThreadPoolExecutor(max_workers=1) as executor:
            following = executor.submit(self.micro_batches, first)
            for step in range(first, self.total_steps):
                micro_batches = following.result()
                if step + 1 < self.total_steps:
                    following = executor.submit(self.micro_batches, step + 1)
                yield step, micro_batches

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return this worker's micro-batches of a step."""
        numbers = [self._workers.rank + i * self._workers.total for i in range(self._micro_batches_per_worker)]
        return [self._micro_batch(step, number) for number in numbers]

    def first_passages(self, count: int) -> list[Passage]:
        """Return the first `count` passages of the training or a few more; fewer if an epoch has fewer."""
        recipe = self._recipe
        rows = self._data.order(0, recipe.seed)[: math.ceil(count / (1 + recipe.hard_negatives))]
        return [passage for group in self._groups(0, rows) for passage in group.passages]

    def _micro_batch(self, step: int, number: int) -> MicroBatch:
        recipe = self._recipe
        epoch, batch = divmod(step, self._per_epoch)
        start = batch * recipe.batch_queries + number * recipe.queries_per_device
        groups = self._groups(epoch, self._order(epoch, recipe.seed)[start : start + recipe.queries_per_device])
        passages = [passage for group in groups for passage in group.passages]
        texts = [join_title(passage.title, passage.text, self._preparer.text) for passage in passages]
        return MicroBatch(
            number,
            [group.query_id for group in groups],
            self._prepare([group.query for group in groups], "query", step),
            self._prepare(texts, "passage", step),
            key_tensor(map(passage_key, passages)),
            [key_tensor({passage_key(group.passages[0]), *group.answers}) for group in groups],
        )

    def _groups(self, epoch: int, rows: np.ndarray) -> list[Group]:
        negatives, seed = self._recipe.hard_negatives, self._recipe.seed
        return [self._data.group(int(row), epoch=epoch, negatives=negatives, seed=seed) for row in rows]

    def _prepare(self, texts: Sequence[str], side: Side, step: int) -> list[PreparedText]:
        budgets = self._recipe.query_budgets if side == "query" else self._recipe.passage_budgets
        slots = self._preparer.default_slots(side)
        if budgets:
            slots = draw(budgets, "budget", side, self._recipe.seed, step)
        return self._preparer.prepare(texts, side, [slots] * len(texts))


def key_tensor(keys: Iterable[int]) -> Tensor:
    """Return unsigned 64-bit keys as int64 [n]."""
    return torch.from_numpy(np.fromiter(keys, np.uint64).view(np.int64))


def known_answers(answers: Sequence[Tensor], passage_keys: Tensor, workers: Workers) -> Tensor:
    """Return which candidates of all workers answer which query, bool [Q, P], ordered by rank as in `gather`.

    `answers` has for each query of this worker the keys of all passages known to answer it, int64 [n]. `passage_keys`
    are the keys of this worker's candidates, the same number on each worker.
    """
    keys_P = gather_rows(passage_keys, workers)
    own_BP = torch.stack([torch.isin(keys_P, keys.to(keys_P.device)) for keys in answers])
    return gather_rows(own_BP, workers)
