"""Sampling by counters alone: orders and groups, the same in every process and for every number of workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.data.examples import passage_key
from diffretriever.training.data.seeds import draws
from diffretriever.training.data.training_set import TrainingSet
from tests.training.example_cases import examples, jsonl, prepared, tevatron

MADE = examples(40, positives=3, negatives=10)
KNOWN_GROUPS = [
    "d12,d27,d21,d30,d39,d36,d18,d33,d24,d15,d42,d80,d107",
    "d53,d60,d54,d81,d72,d75,d63,d66,d57,d69,d78,d6,d30",
]
KNOWN_ORDER = [19, 18, 15, 4, 5, 3]
KNOWN_DRAWS = [2115218756150950235, 7594619805361441279, 13371684544209651057]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    folder = tmp_path_factory.mktemp("set")
    (folder / "train.jsonl").write_text(jsonl(map(tevatron, MADE)), "utf-8")
    return prepared(PrepareTrainingJob(source=(str(folder / "train.jsonl"),), output=folder / "out"))


def test_draws_are_what_they_have_always_been() -> None:
    """Resumed trainings and other machines rely on these numbers."""
    assert draws(3, "order", 42, 0).tolist() == KNOWN_DRAWS
    assert draws(2, "order", 42, 0).tolist() == KNOWN_DRAWS[:2]
    assert len(draws(0, "x")) == 0


def test_groups_are_one_positive_and_hard_negatives(made: TrainingSet) -> None:
    for row, example in enumerate(MADE):
        group = made.group(row, epoch=0, negatives=5, seed=42)
        assert (group.query_id, group.query) == (example.query_id, example.query)
        assert group.passages[0] in example.positives
        assert len(group.passages) == 6 == len(set(group.passages))
        assert set(group.passages[1:]) <= set(example.negatives)
        assert set(group.answers) == {passage_key(passage) for passage in example.positives}


def test_epochs_go_through_all_passages(made: TrainingSet) -> None:
    for row, example in enumerate(MADE):
        groups = [made.group(row, epoch=epoch, negatives=3, seed=7) for epoch in range(12)]
        assert {g.passages[0] for g in groups[:3]} == set(example.positives), "positives take turns"
        first = [p for g in groups for p in g.passages[1:]][: len(example.negatives)]
        assert set(first) == set(example.negatives), "none is seen twice before all are seen"
    first_groups = [made.group(row, epoch=0, negatives=3, seed=7) for row in range(40)]
    assert sum(made.group(row, epoch=1, negatives=3, seed=7) != g for row, g in enumerate(first_groups)) == 40
    assert sum(made.group(row, epoch=0, negatives=3, seed=8) != g for row, g in enumerate(first_groups)) > 35
    starts = Counter(MADE[row].positives.index(g.passages[0]) for row, g in enumerate(first_groups))
    assert min(starts.values()) >= 5, "queries begin with different positives"


def test_too_few_negatives_are_filled_up_with_positives_of_others(made: TrainingSet) -> None:
    positives = {p: e.query_id for e in MADE for p in e.positives}
    for row, example in enumerate(MADE):
        group = made.group(row, epoch=2, negatives=25, seed=42)
        assert len(group.passages) == 26 == len(set(group.passages))
        hard, borrowed = group.passages[1 : 1 + len(example.negatives)], group.passages[1 + len(example.negatives) :]
        assert set(hard) == set(example.negatives)
        assert all(positives[p] != example.query_id for p in borrowed)
        assert made.group(row, epoch=2, negatives=25, seed=42) == group
    assert made.group(0, epoch=3, negatives=25, seed=42).passages[-1] != group.passages[-1]


def test_nothing_like_an_own_positive_is_borrowed(tmp_path: Path) -> None:
    """Neither its text under another id, nor the positive of another example with the same query."""
    records = [
        {"query_id": "a", "query": "why", "positive_passages": [{"docid": "1", "text": "Because of it"}]},
        {"query_id": "b", "query": "who", "positive_passages": [{"docid": "2", "text": "because  OF it"}]},
        {"query_id": "c", "query": "why", "positive_passages": [{"docid": "3", "text": "just so"}]},
        {"query_id": "d", "query": "how", "positive_passages": [{"docid": "4", "text": "like this"}]},
    ]
    (tmp_path / "x.jsonl").write_text(jsonl(records), "utf-8")
    small = prepared(PrepareTrainingJob(source=(str(tmp_path / "x.jsonl"),), output=tmp_path / "out"))
    for epoch in range(20):
        assert [p.id for p in small.group(0, epoch=epoch, negatives=1, seed=1).passages] == ["1", "4"]
    assert {p.id for p in small.group(3, epoch=0, negatives=2, seed=1).passages[1:]} <= {"1", "2", "3"}
    with pytest.raises(ValueError, match=r"too few passages for 2 more negatives of query 'a'.*mine_negatives"):
        small.group(0, epoch=0, negatives=2, seed=1)


def test_groups_are_what_they_have_always_been(made: TrainingSet) -> None:
    """In any process, whatever its hash seed is."""
    groups = [made.group(row, epoch=1, negatives=12, seed=3) for row in (4, 17)]
    assert [",".join(passage.id for passage in group.passages) for group in groups] == KNOWN_GROUPS
    assert made.order(1, 3).tolist()[:6] == KNOWN_ORDER
    assert sorted(made.order(1, 3).tolist()) == list(range(40))
