"""What each worker runs in each step: its parts of the batch, prepared on the CPU while the step before it computes.

A step's batch is the same for any number of workers. It has parts of `queries_per_device` queries; of W workers, worker
w runs every W-th part from part w on.

False negatives are found by equality: candidates that are known to answer a query, besides the positive that it is
given. Passages are known by their key (`examples.passage_key`), 64 bits held as int64.

Legend: B queries of a part, C passages of a query's own, Q queries and P candidates of the workers that share them,
n keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from diffretriever.collections.records import Passage
from diffretriever.encoders.preparer import PreparedText, Preparer, join_title
from diffretriever.schemas.retriever import Side
from diffretriever.schemas.training import Recipe
from diffretriever.training.data.examples import Group, passage_key
from diffretriever.training.data.seeds import draw
from diffretriever.training.gather import Workers, gather_rows


class TrainingData(Protocol):
    """What is needed of a `TrainingSet`."""

    digest: str

    def __len__(self) -> int: ...

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Rows of the set, int64, in the order of an epoch."""
        ...

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        """What the query of a row brings to a step of an epoch.

        Args:
            row: of the set.
            epoch: counted from 0.
            negatives: how many passages besides the positive.
            seed: of the training.
        """
        ...


class Part(NamedTuple):
    """Some queries of a batch with their passages."""

    number: int
    """Which part of its batch it is, over all workers."""
    query_ids: list[str]
    queries: list[PreparedText]
    passages: list[PreparedText]
    """C for each query, its positive first."""
    teacher_BC: Tensor | None
    """float32, the teacher's scores; rows of NaN where a query has none; None without distillation."""
    passage_keys: Tensor
    """int64 [B C], keys of the passages; see `known_answers`."""
    answers: list[Tensor]
    """For each query int64 [n], keys of the passages known to answer it, its positive among them."""
    taught_queries: list[PreparedText]
    """The queries as the teacher reads them; none without a teacher."""
    taught_passages: list[PreparedText]
    """Likewise."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, prompt and slots included, padding not; int64."""
        return np.array([len(text.input_ids) for text in (*self.queries, *self.passages)])


class Batches:
    """The batches of a whole training, as one worker sees them."""

    def __init__(
        self,
        data: TrainingData,
        preparer: Preparer,
        recipe: Recipe,
        workers: Workers,
        teacher_preparer: Preparer | None = None,
    ) -> None:
        """Lay out the batches.

        Args:
            data: the training set.
            preparer: of the retriever. Both preparers are used from another thread: they must be nobody else's.
            recipe: sizes and the seed.
            workers: this one among all.
            teacher_preparer: of the teacher's retriever, if there is one.

        Raises:
            ValueError: the set has fewer queries than one batch, or the workers cannot share a batch evenly.
        """
        self._data, self._preparer, self._recipe, self._workers = data, preparer, recipe, workers
        self._teacher_preparer = teacher_preparer
        self._parts = recipe.parts_per_worker(workers.total)
        self._per_epoch = len(data) // recipe.batch_queries
        if self._per_epoch == 0:
            raise ValueError(
                f"the training set has {len(data)} queries, fewer than a batch of {recipe.batch_queries}: "
                "lower --batch-queries, or give more data"
            )
        self._order = lru_cache(maxsize=1)(data.order)
        self.total_steps: int = min(
            recipe.max_steps or self._per_epoch * recipe.epochs, self._per_epoch * recipe.epochs
        )

    def prefetched(self, first: int) -> Iterator[tuple[int, list[Part]]]:
        """Yield step and parts from step `first` on; the next step's are prepared meanwhile."""
        if first >= self.total_steps:
            return
        with ThreadPoolExecutor(max_workers=1) as executor:
            following = executor.submit(self.parts, first)
            for step in range(first, self.total_steps):
                parts = following.result()
                if step + 1 < self.total_steps:
                    following = executor.submit(self.parts, step + 1)
                yield step, parts

    def parts(self, step: int) -> list[Part]:
        """Return this worker's parts of a step, in the order of their numbers."""
        numbers = [self._workers.rank + i * self._workers.total for i in range(self._parts)]
        return [self._part(step, number) for number in numbers]

    def passages(self, step: int, count: int) -> list[Passage]:
        """Return `count` passages or a few more: of a step's batch and those after it; fewer where an epoch has fewer.

        Other threads than that of `prefetched` may ask.
        """
        recipe = self._recipe
        epoch, place = divmod(step, self._per_epoch)
        rows = np.roll(self._order(epoch, recipe.seed), -place * recipe.batch_queries)
        groups = self._groups(epoch, rows[: math.ceil(count / (1 + recipe.hard_negatives))])
        return [passage for group in groups for passage in group.passages]

    def _part(self, step: int, number: int) -> Part:
        recipe = self._recipe
        epoch, place = divmod(step, self._per_epoch)
        start = place * recipe.batch_queries + number * recipe.queries_per_device
        groups = self._groups(epoch, self._order(epoch, recipe.seed)[start : start + recipe.queries_per_device])
        passages = [passage for group in groups for passage in group.passages]
        texts = [join_title(passage.title, passage.text, self._preparer.text) for passage in passages]
        return Part(
            number,
            [group.query_id for group in groups],
            self._prepare([group.query for group in groups], "query", step),
            self._prepare(texts, "passage", step),
            _scores(groups) if recipe.distillation != "none" and recipe.teacher is None else None,
            key_tensor(map(passage_key, passages)),
            [key_tensor({passage_key(group.passages[0]), *group.answers}) for group in groups],
            *self._for_teacher(groups, passages),
        )

    def _for_teacher(
        self, groups: Sequence[Group], passages: Sequence[Passage]
    ) -> tuple[list[PreparedText], list[PreparedText]]:
        if self._teacher_preparer is None:
            return [], []
        return (
            self._teacher_preparer.prepare_queries([group.query for group in groups]),
            self._teacher_preparer.prepare_passages([p.title for p in passages], [p.text for p in passages]),
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


def _scores(groups: Sequence[Group]) -> Tensor:
    nothing = [torch.nan] * len(groups[0].passages)
    return torch.tensor([nothing if group.scores is None else list(group.scores) for group in groups])


def key_tensor(keys: Iterable[int]) -> Tensor:
    """Return int64 [n]: the 64 bits of each key, which is not negative."""
    return torch.from_numpy(np.fromiter(keys, np.uint64).view(np.int64))


def known_answers(answers: Sequence[Tensor], passage_keys: Tensor, workers: Workers) -> Tensor:
    """Return bool [Q, P]: which candidates answer which query, worker after worker as in `gather`.

    A query's own positive is among them.

    Args:
        answers: int64 [n] for each of this worker's queries: the keys of all passages known to answer it.
        passage_keys: int64, the keys of this worker's candidates; as many on each worker.
        workers: those whose candidates are shared.
    """
    keys_P = gather_rows(passage_keys, workers)
    own_BP = torch.stack([torch.isin(keys_P, keys.to(keys_P.device)) for keys in answers])
    return gather_rows(own_BP, workers)
