"""False negatives by equality, against slow loops over texts and over single candidates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffretriever.encoders import load_preparer
from diffretriever.schemas.training import Recipe
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.batches import Batches, key_tensor, known_answers
from diffretriever.training.data.examples import passage_key, text_key
from diffretriever.training.objective import dense_scores, objective, sparse_scores
from diffretriever.training.trainable import TextVectors
from tests.training.example_cases import examples, jsonl, prepared, tevatron
from tests.training.trainer_cases import (
    ALONE,
    FolderOf,
    ListedData,
    answers_to,
    config_of,
    own_texts,
    quick_recipe,
    random_texts,
    run,
    session_of,
    with_gradients,
)

RECIPE = Recipe(hard_negatives=1, temperature=0.1)
QUERIES, PASSAGES = random_texts(5, 3, 4, seed=1), random_texts(10, 4, 6, seed=2)
# Of every query its own positive, of some a copy of it or another answer; of the last query all there is.
ANSWERS = torch.tensor(
    [
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 0, 0, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
).bool()


def slow_loss(scores_QP: Tensor) -> Tensor:
    """Mean over queries of the cross-entropy over the candidates that count, one at a time."""
    losses = []
    for query, scores in enumerate(scores_QP):
        counted = [scores[p] for p in range(len(scores)) if p == 2 * query or not ANSWERS[query, p]]
        losses.append(torch.stack(counted).logsumexp(0) - scores[2 * query])
    return torch.stack(losses).mean()


def leaves() -> tuple[TextVectors, TextVectors]:
    return with_gradients(QUERIES), with_gradients(PASSAGES)


def test_answers_count_neither_as_negatives_nor_as_mistakes() -> None:
    ours, theirs = leaves(), leaves()
    found = objective(*ours, RECIPE, ANSWERS)
    dense, sparse = slow_loss(dense_scores(*theirs) / RECIPE.temperature), slow_loss(sparse_scores(*theirs))
    torch.testing.assert_close(found.dense, dense)
    torch.testing.assert_close(found.sparse, sparse)
    right = []
    for query, scores in enumerate(dense_scores(QUERIES, PASSAGES)):
        better = [p for p in range(10) if scores[p] > scores[2 * query] and not ANSWERS[query, p]]
        right.append(not better)
    assert float(found.accuracy) == pytest.approx(sum(right) / 5)
    found.loss.backward()
    (dense + sparse).backward()
    for mine, reference in zip(ours, theirs, strict=True):
        for tensor, other in ((mine.vectors_BKH, reference.vectors_BKH), (mine.weights_BT, reference.weights_BT)):
            torch.testing.assert_close(tensor.grad, other.grad)


def test_a_query_whose_candidates_all_answer_it_learns_nothing() -> None:
    queries, passages = leaves()
    objective(queries, passages, RECIPE, ANSWERS).loss.backward()
    assert queries.vectors_BKH.grad is not None
    assert queries.vectors_BKH.grad[:4].abs().amin(0).max() > 0
    assert torch.equal(queries.vectors_BKH.grad[4], torch.zeros(3, 5))


def test_keys_keep_all_64_bits() -> None:
    large = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    keys = key_tensor(large)
    assert keys.dtype == torch.int64
    assert len(set(keys.tolist())) == 5
    found = known_answers([key_tensor([key]) for key in large], keys, ALONE)
    assert torch.equal(found, torch.eye(5).bool())


def test_what_a_batch_knows(folder_of: FolderOf) -> None:
    """Copies in other case and spacing included, against loops over the texts themselves."""
    recipe = quick_recipe(batch_queries=32, queries_per_device=32)
    (part,) = Batches(ListedData(48), load_preparer(config_of("masked-dream", folder_of)), recipe, ALONE).parts(0)
    found = known_answers(part.answers, part.passage_keys, ALONE)
    rows = [int(query_id[1:]) for query_id in part.query_ids]
    candidates = [text for row in rows for text in own_texts(row, 3)]
    expected = torch.tensor([[text in answers_to(row) for text in candidates] for row in rows])
    assert torch.equal(found, expected)
    copies = expected.clone()
    copies[torch.arange(32), 3 * torch.arange(32)] = False
    assert copies.sum() > 20, "there is something to mask"
    assert text_key("The honey\nAND  water") == text_key("the honey and water")


def test_a_training_set_knows_all_positives(tmp_path: Path) -> None:
    made = examples(6, positives=3, negatives=4)
    (tmp_path / "train.jsonl").write_text(jsonl(map(tevatron, made)), "utf-8")
    training_set = prepared(PrepareTrainingJob(source=(str(tmp_path / "train.jsonl"),), output=tmp_path / "out"))
    for row, example in enumerate(made):
        for epoch in range(2):
            group = training_set.group(row, epoch=epoch, negatives=2, seed=1)
            assert set(group.answers) == {passage_key(passage) for passage in example.positives}


def test_the_switch(folder_of: FolderOf) -> None:
    retriever = config_of("masked-bert", folder_of)
    kept, masked = (
        run(session_of(retriever, quick_recipe(queries_per_device=8, equal_passages=way)), 1)[0]
        for way in ("keep", "mask")
    )
    assert masked.dense_loss < kept.dense_loss
    assert masked.sparse_loss < kept.sparse_loss
    assert masked.accuracy >= kept.accuracy
