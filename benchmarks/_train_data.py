"""What the loops of benchmarks/train.py train on, when their steps end, and how much arithmetic a step is."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks._train_figures import Setting
from diffretriever.collections import Passage, open_collection
from diffretriever.training.data.examples import Group, passage_key

_QUERY_WORDS = 8


def data_of(setting: Setting) -> DistinctPassages:
    """Return as many queries as the steps take."""
    recipe = setting.recipe
    assert recipe.max_steps is not None, "a benchmark ends"
    return DistinctPassages(setting.collection, recipe.max_steps * recipe.batch_queries, 1 + recipe.hard_negatives)


class DistinctPassages:
    """Queries that are the first words of their passages; no passage comes twice, so none is masked."""

    digest = "of the benchmark"

    def __init__(self, collection: str, queries: int, each: int) -> None:
        """Take `queries` x `each` passages, spread over the collection."""
        records = (record for record in open_collection(collection).records() if isinstance(record, Passage))
        passages = list({passage_key(passage): passage for passage in records}.values())
        if len(passages) < queries * each:
            raise SystemExit(
                f"{collection} has {len(passages)} passages, and {queries} queries with {each} each need "
                f"{queries * each}: lower --steps, --batch-queries or --hard-negatives"
            )
        places = np.arange(queries * each) * len(passages) // (queries * each)
        self._passages = [passages[place] for place in np.random.default_rng(0).permutation(places)]
        self._queries, self._each = queries, each

    def __len__(self) -> int:
        return self._queries

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Rows as they are."""
        return np.arange(self._queries)

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        """A row's own passages."""
        own = self._passages[row * self._each : (row + 1) * self._each]
        query = " ".join((own[0].text or own[0].title).split()[:_QUERY_WORDS])
        return Group(f"q{row}", query, tuple(own), None)


class Clock:
    """Ends of steps, once what they have begun on the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Note the end of a step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._ends.append((time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> float:
        """From the end of the first step to that of the last."""
        return self._ends[-1][0] - self._ends[0][0]

    @property
    def cpu_seconds(self) -> float:
        """Of the processor in that time, on all threads of the process."""
        return self._ends[-1][1] - self._ends[0][1]


def model_flops(lengths: np.ndarray, matrices: int, trained: int, layers: int, width: int) -> float:
    """Return the floating-point operations of training a masked model on these texts, one pass forward and one back.

    T (4 N + 6 n) + 12 L D Σ s²: each of the N frozen weights of a token's matrices takes part in one product forward
    and one back (no gradient of its own), each of LoRA's n in one more; the two products of bidirectional attention,
    forward and twice back. Counted are tokens without padding; left out are embeddings, norms, losses, the output head
    (read at few positions, for few words) and what gradient checkpointing computes again, as is usual for model FLOPs.

    Args:
        lengths: s, tokens of each text; T is their sum.
        matrices: N.
        trained: n.
        layers: L.
        width: D, of all attention heads together.
    """
    lengths = lengths.astype(np.float64)
    return float(lengths.sum() * (4 * matrices + 6 * trained) + 12 * layers * width * (lengths**2).sum())
