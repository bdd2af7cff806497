"""Another retriever as the teacher: its scores of all candidates, its vectors, and what cannot be taught.

Legend: Q queries, P candidates.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from torch.nn.functional import kl_div

from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.schemas.training import OWN_TOKENS, Recipe
from diffretriever.training.batches import Part
from diffretriever.training.objective import dense_scores, misalignment, objective
from diffretriever.training.session import check_trainable, describe_training
from diffretriever.training.trainable import Taught
from tests.training.trainer_cases import (
    FolderOf,
    ListedData,
    config_of,
    quick_recipe,
    random_texts,
    run,
    session_of,
)

SLOTS_AFTER_THE_TEXT = {"nested_slots": True, "prompt": {"variant": "bare"}, "tail_length": 1}


@pytest.fixture
def teacher(folder_of: FolderOf, tmp_path: Path) -> str:
    """A mean-pooled retriever, described by a file."""
    config = config_of("pooled-bert", folder_of)
    file = tmp_path / "teacher.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(file)


def recorded(parts: list[Part]) -> tuple[list[int], list[int]]:
    return [len(part.taught_queries) for part in parts], [len(part.taught_passages) for part in parts]


def test_it_reads_the_same_texts_in_its_own_way(folder_of: FolderOf, teacher: str) -> None:
    session = session_of(config_of("masked-bert", folder_of), quick_recipe(distillation="kl", teacher=teacher))
    parts = session.trainer.batches.parts(0)
    assert recorded(parts) == ([2] * 4, [6] * 4)
    encoder = load_encoder(config_of("pooled-bert", folder_of), "cpu")
    assert isinstance(encoder, BackboneEncoder)
    data = ListedData(48)
    row = int(data.order(0, 42)[0])
    group = data.group(row, epoch=0, negatives=2, seed=42)
    (query,) = encoder.preparer.prepare_queries([group.query])
    assert parts[0].taught_queries[0].input_ids.tolist() == query.input_ids.tolist()
    passages = encoder.preparer.prepare_passages(["", "", ""], [passage.text for passage in group.passages])
    for found, expected in zip(parts[0].taught_passages, passages, strict=False):
        assert found.input_ids.tolist() == expected.input_ids.tolist()


def test_the_losses_by_hand() -> None:
    queries, passages = random_texts(3, 3, 4, seed=1), random_texts(6, 2, 4, seed=2)
    taught = Taught(random_texts(3, 1, 0, seed=3), random_texts(6, 1, 0, seed=4))
    ours_QP, theirs_QP = dense_scores(queries, passages), dense_scores(*taught)
    base = {"temperature": 0.1, "teacher_temperature": 0.2, "distillation_weight": 0.5, "teacher": "minilm-pooled"}
    found = objective(queries, passages, None, 2, Recipe(distillation="kl", **base), None, taught)
    expected = torch.stack(
        [
            kl_div((ours_P / 0.1).log_softmax(0), (theirs_P / 0.2).softmax(0), reduction="sum")
            for ours_P, theirs_P in zip(ours_QP, theirs_QP, strict=True)
        ]
    ).mean()
    torch.testing.assert_close(found.distillation, expected)
    torch.testing.assert_close(found.loss, found.dense + found.sparse + 0.5 * expected)
    found = objective(queries, passages, None, 2, Recipe(distillation="mse", **base), None, taught)
    torch.testing.assert_close(found.distillation, ((ours_QP - theirs_QP) ** 2).mean())
    found = objective(queries, passages, None, 2, Recipe(distillation="align", **base), None, taught)
    total = torch.zeros(())
    for ours, theirs in ((queries, taught.queries), (passages, taught.passages)):
        cosines = []
        for row, valid in enumerate(ours.valid_BK):
            mean_H, own_H = ours.vectors_BKH[row][valid].mean(0), theirs.vectors_BKH[row, 0]
            cosines.append((mean_H @ own_H) / (mean_H.norm() * own_H.norm()))
        total = total + (1 - torch.stack(cosines)).mean()
    torch.testing.assert_close(found.distillation, total)
    torch.testing.assert_close(misalignment(queries, queries), torch.zeros(()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("negatives", ["local", "gathered", "cached"])
@pytest.mark.parametrize("distillation", ["kl", "align"])
def test_the_student_comes_nearer(distillation: str, negatives: str, folder_of: FolderOf, teacher: str) -> None:
    recipe = quick_recipe(
        distillation=distillation, teacher=teacher, negatives=negatives, max_steps=12, sparse_weight=0, epochs=3
    )
    losses = [metrics.distillation_loss for metrics in run(session_of(config_of("masked-bert", folder_of), recipe), 12)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("distillation", ["kl", "mse", "align"])
def test_a_teacher_with_a_vector_a_token(distillation: str, folder_of: FolderOf, tmp_path: Path) -> None:
    """All tokens teach, clusters or not: a part's passages are padded with vectors that count for nothing."""
    config = config_of("tokens-bert", folder_of, clusters=2, mean_share=0.5)
    file = tmp_path / "teacher.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    weights = {"sparse_weight": 0, "distillation_weight": 100}
    recipe = quick_recipe(distillation=distillation, teacher=str(file), max_steps=12, epochs=3, **weights)
    session = session_of(config_of("masked-bert", folder_of), recipe)
    found = session.trainer.teacher
    assert found is not None
    part = session.trainer.batches.parts(0)[0]
    taught = found.taught([part], session.trainer.workers).passages
    assert taught.valid_BK.sum(1).tolist() == [len(text.input_ids) for text in part.taught_passages]
    losses = [metrics.distillation_loss for metrics in run(session, 12)]
    assert losses[-1] < 0.9 * losses[0]


def test_its_own_tokens_teach_as_another_retrievers_do(folder_of: FolderOf, tmp_path: Path) -> None:
    file = tmp_path / "teacher.yaml"
    file.write_text(yaml.safe_dump(config_of("tokens-bert", folder_of, mean_share=0.5).model_dump(mode="json")))
    student = config_of("masked-bert", folder_of, adapter_on="slots", **SLOTS_AFTER_THE_TEXT)
    found = []
    for teacher in (str(file), OWN_TOKENS):
        recipe = quick_recipe(distillation="kl", teacher=teacher, negatives="cached", max_steps=4)
        found.append(run(session_of(student, recipe), 4))
    for other, own in zip(*found, strict=True):
        assert own.distillation_loss == pytest.approx(other.distillation_loss, rel=1e-4)
        assert own.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)


def test_the_teacher_is_not_trained(folder_of: FolderOf, teacher: str) -> None:
    recipe = quick_recipe(distillation="align", teacher=teacher, max_steps=2)
    session = session_of(config_of("masked-bert", folder_of), recipe)
    part = session.trainer.batches.parts(0)[0]
    found = session.trainer.teacher
    assert found is not None
    before = found.taught([part], session.trainer.workers).passages.vectors_BKH
    assert not before.requires_grad
    run(session, 2)
    assert torch.equal(found.taught([part], session.trainer.workers).passages.vectors_BKH, before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"teacher": "minilm-pooled"}, "nothing is learned from it: set distillation to kl, mse or align"),
        ({"distillation": "align"}, "align learns from vectors, not scores: name a teacher"),
        ({"distillation": "align", "teacher": OWN_TOKENS}, "take kl with teacher own-tokens"),
    ],
)
def test_recipes_that_make_no_sense(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(fields)


def test_teachers_that_cannot_be(folder_of: FolderOf, tmp_path: Path) -> None:
    student = config_of("masked-bert", folder_of)
    with pytest.raises(ValueError, match="teacher: bm25 is a bm25 retriever"):
        describe_training(student, quick_recipe(distillation="kl", teacher="bm25"), ListedData(48), 1, "cpu")
    with pytest.raises(ValueError, match="unknown retriever 'minilm-poold'"):
        describe_training(student, quick_recipe(distillation="kl", teacher="minilm-poold"), ListedData(48), 1, "cpu")
    with pytest.raises(ValueError, match="own-tokens is for slots filled in one pass by an adapter that leaves"):
        check_trainable(student, quick_recipe(distillation="kl", teacher=OWN_TOKENS))
    with pytest.raises(ValueError, match=r"minilm-pooled have 384 dimensions and these 32: take kl"):
        session_of(student, quick_recipe(distillation="align", teacher="minilm-pooled"))
