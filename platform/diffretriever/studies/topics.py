"""What a collection is about, by the tokens that its passages' slots predict: for each slot, and in topics.

Topics are clusters of centred mean vectors of passages. Their words add most to the Kullback-Leibler divergence of the
topic's predicted words from those of all passages.

Legend: P passages that are read, M their vectors, H hidden size, W different words, C topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import normalize

from diffretriever.core.progress import Progress
from diffretriever.encoders.base import Encoder
from diffretriever.index.damage import refuse_rows
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.serve import Reading
from diffretriever.studies.topics_config import DescribeJob, Example, IndexDescription, SlotDescription, SlotWord, Topic
from diffretriever.vectors.representations import read_vectors

_TAKEN_ROWS = 256
_EXAMPLES = 3
_ROUNDS = 6
"""Of spherical k-means."""
_SEED = 0
"""Of the sample and of the first centres: the same index gives the same topics."""


@dataclass(slots=True)
class _Said:
    """What the passages say, as far as they are read."""

    examples: list[Example] = field(default_factory=list)
    """[P]."""
    means: list[np.ndarray] = field(default_factory=list)
    """[P] of float32 [H]."""
    words: list[np.ndarray] = field(default_factory=list)
    """[P] of int64, the numbers of all words of all slots."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Word → its number, in the order in which they came."""
    by_slot: list[Counter[str]] = field(default_factory=list)
    """Of each slot, word → passages."""
    slots: Counter[int] = field(default_factory=Counter)
    """Slot → passages that have it."""

    def add(self, example: Example, vectors_MH: np.ndarray, readings: list[Reading]) -> None:
        """Count one passage."""
        self.examples.append(example)
        self.means.append(vectors_MH.mean(axis=0, dtype=np.float32))
        said = [[each.word.casefold() for each in reading] for reading in readings]
        numbers = [self.numbers.setdefault(word, len(self.numbers)) for words in said for word in words]
        self.words.append(np.array(numbers, np.int64))
        for slot, words in enumerate(said):
            if slot == len(self.by_slot):
                self.by_slot.append(Counter())
            self.by_slot[slot].update(words)
            self.slots[slot] += 1


def check_readable(index: PassageIndex) -> None:
    """Raise `ValueError` for an index without passages, without vectors, or without an output head to read them."""
    retriever = index.manifest.retriever
    if index.manifest.hidden_size is None:
        raise ValueError(f"{index.uri} has no vectors: {retriever.method} goes by the words of texts")
    if not retriever.is_readable:
        raise ValueError(
            f"{index.uri} is of the method {retriever.method}, whose model has no output head to read vectors by: only "
            "indexes of masked, generated and pooled retrievers can be described"
        )
    if not len(index):
        raise ValueError(f"{index.uri} holds no passages")


def describe(index: PassageIndex, encoder: Encoder, job: DescribeJob) -> IndexDescription:
    """Read a sample of the passages and describe slots and topics."""
    said = _Said()
    rows = np.random.default_rng(_SEED).choice(len(index), min(job.sample, len(index)), replace=False)
    with Progress("reading slots", len(rows), quiet=True) as progress:
        for example, vectors_MH, readings in _passages(index, encoder, np.sort(rows), job.words):
            said.add(example, vectors_MH, readings)
            progress.update(1)
    return IndexDescription(
        index=index.uri,
        retriever=index.manifest.title,
        passages=len(index),
        read=len(rows),
        slots=[
            SlotDescription(slot=slot, passages=said.slots[slot], words=_frequent(words, said.slots[slot], job.words))
            for slot, words in enumerate(said.by_slot)
        ],
        topics=_topics(said, job),
    )


def _passages(
    index: PassageIndex, encoder: Encoder, rows: np.ndarray, words: int
) -> Iterator[tuple[Example, np.ndarray, list[Reading]]]:
    for start in range(0, len(rows), _TAKEN_ROWS):
        table = index.take(rows[start : start + _TAKEN_ROWS], ["id", "title", "reps"])
        refuse_rows(index.uri, table)
        vectors_MH, offsets = read_vectors(table)
        readings = encoder.read(vectors_MH, words)
        names = zip(table.column("id").to_pylist(), table.column("title").to_pylist(), strict=True)
        for (passage_id, title), (first, end) in zip(names, pairwise(offsets.tolist()), strict=True):
            yield Example(id=passage_id, title=title), vectors_MH[first:end], readings[first:end]


def _frequent(words: Counter[str], passages: int, count: int) -> list[SlotWord]:
    # Of equally frequent ones by the alphabet, whatever order the passages came in.
    best = sorted(words.items(), key=lambda each: (-each[1], each[0]))[:count]
    return [SlotWord(word=word, share=number / passages) for word, number in best]


def _topics(said: _Said, job: DescribeJob) -> list[Topic]:
    means_PH = np.stack(said.means)
    apart_PH = means_PH - means_PH.mean(axis=0)
    apart_PH /= np.maximum(np.linalg.norm(apart_PH, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    centroids_CH, topic_P = _spherical_topics(apart_PH, min(job.topics, len(apart_PH)), _SEED)
    overall_W = _counts(said, np.arange(len(topic_P)))
    found = []
    for number, centroid_H in enumerate(centroids_CH):
        (members,) = np.nonzero(topic_P == number)
        if not len(members):
            continue
        nearest = members[np.argsort(-(apart_PH[members] @ centroid_H), kind="stable")[:_EXAMPLES]]
        found.append(
            Topic(
                passages=len(members),
                share=len(members) / len(topic_P),
                words=_telling(said, _counts(said, members), overall_W, job.words),
                examples=[said.examples[place] for place in nearest.tolist()],
            )
        )
    return sorted(found, key=lambda topic: -topic.passages)


def _counts(said: _Said, members: np.ndarray) -> np.ndarray:
    return np.bincount(np.concatenate([said.words[each] for each in members]), minlength=len(said.numbers))


def _telling(said: _Said, own_W: np.ndarray, overall_W: np.ndarray, count: int) -> list[str]:
    share_W = own_W / max(1, own_W.sum())
    elsewhere_W = overall_W / max(1, overall_W.sum())
    # A word that is not said adds nothing.
    added_W = share_W * np.log(np.where(own_W, share_W, 1) / np.where(own_W, elsewhere_W, 1))
    names = list(said.numbers)
    best = np.argsort(-added_W, kind="stable")[:count]
    return [names[word] for word in best.tolist() if own_W[word]]


def _spherical_topics(apart_PH: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Run spherical k-means; an empty cluster moves to the passage farthest from its own centroid."""
    means_PH = torch.from_numpy(apart_PH)
    first = np.random.default_rng(seed).choice(len(apart_PH), count, replace=False)
    centroids_CH = normalize(means_PH[torch.from_numpy(first)], dim=1)
    for _ in range(_ROUNDS):
        products_P, nearest_P = (means_PH @ centroids_CH.T).max(dim=1)
        sums_CH = torch.zeros_like(centroids_CH).index_add_(0, nearest_P, means_PH)
        empty_C = torch.bincount(nearest_P, minlength=count) == 0
        farthest = products_P.argsort(stable=True)[: int(empty_C.sum())]
        sums_CH[empty_C] = means_PH[farthest]
        centroids_CH = normalize(sums_CH, dim=1)
    return centroids_CH.numpy(), (means_PH @ centroids_CH.T).argmax(dim=1).numpy()
