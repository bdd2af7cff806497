"""Trainable retrievers over random checkpoints, with training data in memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.spawn import start_processes

from diffretriever.collections.records import Passage
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneRetriever
from diffretriever.schemas.training import Recipe
from diffretriever.training.data.examples import Group, text_key
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.gather import Workers
from diffretriever.training.loop import StepMetrics
from diffretriever.training.session import Session, describe_training, open_session
from diffretriever.training.trainable import TextVectors

FolderOf = Callable[[str], Path]
ALONE = Workers(0, 1)
WORKERS = 2
"""Of `on_workers`."""
_REPLLAMA = {"pooling": "last", "append_eos": True, "query_prefix": "query: ", "passage_prefix": "passage: "}
CASES: dict[str, dict[str, Any]] = {
    "masked-dream": {"budget": "q2p3"},
    "masked-llada": {"budget": "q4p4", "content_words": {"fold_space_variants": True}},
    "masked-bert": {"budget": "q2p3", "slot_positions": "spread", "prompt": {"variant": "bare"}},
    "masked-llada-2step": {"budget": "q4p4", "steps": 2, "schedule": "even"},
    "masked-modernbert": {"budget": "q2p3", "slot_positions": "spread", "prompt": {"variant": "bare"}},
    "generated-qwen2": {"max_tokens": 3, "stop": "cap"},
    "generated-llama3": {"max_tokens": 4},
    "pooled-dream": {},
    "pooled-llada": {},
    "pooled-qwen2": _REPLLAMA,
    "pooled-bert": {},
    "tokens-llada": {},
    "tokens-qwen2": {"mean_share": 0.5},
    "tokens-bert": {},
}
"""METHOD-FAMILY and anything after: the fields of a config."""
CONTRACT = (
    *("masked-dream", "masked-llada", "masked-bert", "masked-llada-2step", "masked-modernbert"),
    *("generated-qwen2", "generated-llama3", "pooled-qwen2", "pooled-bert", "tokens-qwen2"),
)
"""Every method, and every family."""

# Words that are single entries of the random checkpoints' small vocabularies, so that texts have impacts.
WORDS = ("honey", "water", "winter", "summer", "river", "copper", "query", "passage", "word")
QUICK: dict[str, Any] = {
    "gradient_checkpointing": False,
    "batch_queries": 8,
    "queries_per_device": 2,
    "hard_negatives": 2,
    "equal_passages": "mask",
    "temperature": 0.05,
    "learning_rate": 1e-2,
}
"""A recipe for models and data as small as these."""


class ListedData(TrainingSet):
    """Queries with passages about the same two words, and negatives about others that are other queries' positives."""

    digest = "of the tests"

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def order(self, epoch: int, seed: int) -> np.ndarray:
        return np.random.default_rng([epoch, seed]).permutation(self._size)

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        passages = tuple(Passage(f"p{row}-{i}", "", text) for i, text in enumerate(own_texts(row, 1 + negatives)))
        return Group(f"q{row}", " ".join(topic(row)), passages, tuple(map(text_key, answers_to(row))))


def topic(row: int) -> tuple[str, str]:
    first, second = row % len(WORDS), (row // len(WORDS) + row + 1) % len(WORDS)
    return WORDS[first], WORDS[second]


def text_of(row: int) -> str:
    first, second = topic(row)
    return f"the {first} and the {second} of {first}" + " again" * (row % 3)


def own_texts(row: int, count: int) -> list[str]:
    """The passages that a query brings, its positive first."""
    return [text_of(row + 5 * i) for i in range(count)]


def answers_to(row: int) -> tuple[str, str]:
    """The passages known to answer a query: its positive, and one that it does not bring."""
    return text_of(row), text_of(row + 7)


def config_of(case: str, folder_of: FolderOf, **changes: Any) -> BackboneRetriever:
    method, family, *_ = case.split("-")
    place = {"source": str(folder_of(family)), "dtype": "float32"}
    config = RETRIEVER_ADAPTER.validate_python(CASES[case] | {"method": method, "backbone": place} | changes)
    assert isinstance(config, BackboneRetriever)
    return config


def with_dtype(config: BackboneRetriever, dtype: str) -> BackboneRetriever:
    place = config.backbone.model_copy(update={"dtype": dtype})
    return config.model_copy(update={"backbone": place})


def quick_recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(QUICK | changes)


def session_of(retriever: BackboneRetriever, recipe: Recipe, size: int = 48, workers: Workers = ALONE) -> Session:
    data = ListedData(size)
    manifest = describe_training(retriever, recipe, data, workers.total, "cpu")
    return open_session(data, manifest, "cpu", workers)


def run(session: Session, until: int) -> list[StepMetrics]:
    """Train to the end of a step."""
    metrics: list[StepMetrics] = []
    for found in session.trainer.run():
        metrics.append(found)
        if found.step == until:
            break
    return metrics


def on_workers(work: Callable[..., None], *args: Any) -> None:
    """Run `work(rank, *args)` in two processes: forks of one that is kept, which has loaded what they need."""
    multiprocessing.set_forkserver_preload(["diffretriever.training.session", "tests.training.trainer_cases"])
    start_processes(work, args=args, nprocs=WORKERS, start_method="forkserver")


def with_gradients(texts: TextVectors, dtype: torch.dtype = torch.float32) -> TextVectors:
    """The same values, cut off from their graph, ready to collect gradients."""
    vectors_BKH, weights_BT = (t.detach().to(dtype).requires_grad_() for t in (texts.vectors_BKH, texts.weights_BT))
    return texts._replace(vectors_BKH=vectors_BKH, weights_BT=weights_BT)


def random_texts(count: int, slots: int, ids: int, *, seed: int, dtype: torch.dtype = torch.float32) -> TextVectors:
    """Ragged made-up representations: text i has 1 + i mod slots vectors and i mod (ids + 1) content ids of 12."""
    generator = torch.Generator().manual_seed(seed)
    valid_BK = torch.arange(slots) < (1 + torch.arange(count) % slots)[:, None]
    known_BT = torch.arange(ids) < (torch.arange(count) % (ids + 1))[:, None]
    vectors_BKH = torch.nn.functional.normalize(torch.randn(count, slots, 5, generator=generator, dtype=dtype), dim=-1)
    weights_BT = torch.rand(count, ids, generator=generator, dtype=dtype)
    ids_BT = torch.stack([torch.randperm(12, generator=generator)[:ids] for _ in range(count)])
    return TextVectors(
        vectors_BKH * valid_BK[..., None],
        valid_BK,
        ids_BT * known_BT,
        weights_BT * known_BT,
        known_BT,
        vectors_BKH.flip(1) * valid_BK[..., None],
        valid_BK,
    )
