"""Prepared training sets: contents, sampling, held-out texts and damage."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from diffretriever.collections import BadInputError
from diffretriever.pipelines.training_data import finished, open_inputs, write_training_set
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.data import sources as raw_records
from diffretriever.training.data.examples import Example, passage_key
from diffretriever.training.data.seeds import draws
from diffretriever.training.data.training_set import EXAMPLES_FILE, MANIFEST_FILE, TrainingSet
from tests.training.example_cases import blocks_here, examples, jsonl, prepared, tevatron, write_beir

ROOT = Path(__file__).resolve().parents[2]
MADE = examples(40, positives=3, negatives=10)
KNOWN_GROUPS = [
    "d12,d27,d21,d30,d39,d36,d18,d33,d24,d15,d42,d80,d107",
    "d53,d60,d54,d81,d72,d75,d63,d66,d57,d69,d78,d6,d30",
]
KNOWN_ORDER = [19, 18, 15, 4, 5, 3]
KNOWN_DRAWS = [2115218756150950235, 7594619805361441279, 13371684544209651057]


def write(folder: Path, made: list[Example], name: str = "train.jsonl") -> str:
    (folder / name).write_text(jsonl(map(tevatron, made)), "utf-8")
    return str(folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    folder = tmp_path_factory.mktemp("set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_records, "_PIECE_RECORDS", 15)
        return prepared(PrepareTrainingJob(source=(write(folder, MADE),), output=folder / "out"))


def test_stored_examples_are_the_prepared_ones(made: TrainingSet, tmp_path: Path) -> None:
    assert [made.example(row) for row in range(len(made))] == MADE
    assert made.manifest.counts.model_dump(exclude_defaults=True) == {
        "examples": 40,
        "positives": 120,
        "negatives": sum(len(e.negatives) for e in MADE),
    }
    whole = prepared(PrepareTrainingJob(source=(write(tmp_path, MADE),), output=tmp_path / "out"))
    assert whole.digest == made.digest, "whatever the pieces are"
    other = prepared(PrepareTrainingJob(source=(write(tmp_path, MADE[::-1]),), output=tmp_path / "other"))
    assert other.digest != made.digest
    with pytest.raises(IndexError):
        made.example(40)


def test_sources_are_joined_and_repeated_examples_left_out(tmp_path: Path) -> None:
    first, second = write(tmp_path, MADE[:6] + MADE[2:4], "a.jsonl"), write(tmp_path, MADE[4:9], "b.jsonl")
    joined = prepared(PrepareTrainingJob(source=(first, second), output=tmp_path / "out"))
    assert [joined.example(row) for row in range(len(joined))] == MADE[:9]
    counts = [source.counts for source in joined.manifest.sources]
    assert [(c.examples, c.repeated_examples) for c in counts] == [(6, 2), (3, 2)]
    assert joined.manifest.counts.positives == sum(len(e.positives) for e in MADE[:9])
    assert joined.manifest.counts.negatives == sum(len(e.negatives) for e in MADE[:9])


def test_held_out_texts_are_not_trained_on(tmp_path: Path) -> None:
    held = write_beir(tmp_path / "held", [*examples(3, positives=3, negatives=2), *MADE[20:21]], "test")
    job = PrepareTrainingJob(source=(write(tmp_path, MADE),), hold_out=(str(held),), output=tmp_path / "out")
    made = prepared(job)
    lines = (held / "corpus.jsonl").read_text("utf-8").splitlines()
    ids = {json.loads(line)["_id"] for line in lines}
    queries = {json.loads(line)["text"] for line in (held / "queries.jsonl").read_text("utf-8").splitlines()}
    kept = [
        (e.query_id, [p.id for p in e.positives if p.id not in ids], [p.id for p in e.negatives if p.id not in ids])
        for e in MADE
        if e.query not in queries and any(p.id not in ids for p in e.positives)
    ]
    found = [made.example(row) for row in range(len(made))]
    assert [(e.query_id, [p.id for p in e.positives], [p.id for p in e.negatives]) for e in found] == kept
    counts = made.manifest.counts
    assert counts.held_out_examples == 40 - len(kept) > 3
    assert counts.held_out_positives == sum(p.id in ids for e in MADE for p in e.positives) > 0
    assert counts.held_out_negatives == sum(p.id in ids for e in MADE for p in e.negatives) > 0
    assert [source.name for source in made.manifest.hold_out] == ["held"]


def test_an_incomplete_or_damaged_set_does_not_open(made: TrainingSet, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no training set.*prepare_training"):
        TrainingSet.open(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in made.folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert TrainingSet.open(copy).example(3) == MADE[3]
    whole = (copy / EXAMPLES_FILE).read_bytes()
    (copy / EXAMPLES_FILE).write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"examples\.arrow: missing or truncated"):
        TrainingSet.open(copy)
    (copy / EXAMPLES_FILE).write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    with pytest.raises(ValueError, match="damaged"):
        TrainingSet.open(copy)
    (copy / MANIFEST_FILE).unlink()
    with pytest.raises(ValueError, match=r"incomplete, manifest\.json is missing"):
        TrainingSet.open(copy)


def test_bad_records_stop_or_are_set_aside(tmp_path: Path) -> None:
    path = Path(write(tmp_path, MADE[:3]))
    path.write_text(path.read_text("utf-8") + '{"query": "q"}\n', "utf-8")
    job = PrepareTrainingJob(source=(str(path),), output=tmp_path / "out")
    with pytest.raises(BadInputError, match=r"train\.jsonl:4: no positive.*\n.*quarantine"):
        prepared(job)
    with pytest.raises(ValueError, match="incomplete"):
        TrainingSet.open(job.output)
    made = prepared(job.model_copy(update={"on_bad_input": "quarantine"}))
    assert (len(made), made.manifest.counts.bad_records) == (3, 1)
    line = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text("utf-8"))
    assert line == {"file": str(path), "line": 4, "reason": line["reason"], "raw": '{"query": "q"}'}


def test_the_same_job_is_done_and_another_refused(made: TrainingSet, tmp_path: Path) -> None:
    source = write(tmp_path, MADE[:3])
    job = PrepareTrainingJob(source=(source,), output=tmp_path / "out")
    assert finished(job, open_inputs(job)) is None
    first = prepared(job)
    assert finished(job, open_inputs(job)) == first.manifest
    other = job.model_copy(update={"split": "dev"})
    with pytest.raises(ValueError, match=r"another training set.*\n  split: train != dev"):
        finished(other, open_inputs(other))
    write(tmp_path, MADE[:2])
    with pytest.raises(ValueError, match="sources: "):
        finished(job, open_inputs(job))


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, MADE[:3])
    job = PrepareTrainingJob(source=(source,), output=tmp_path / "out")
    inputs = open_inputs(job)
    blocks = blocks_here(inputs)
    with pytest.raises(ValueError, match="changed while it was read"):
        write_training_set(job, inputs, blocks, lambda _: write(tmp_path, MADE[:2]))
    with pytest.raises(ValueError, match="incomplete"):
        TrainingSet.open(job.output)


def test_draws_never_change() -> None:
    """Resumed trainings rely on these numbers."""
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


def test_random_negatives_are_never_positives(tmp_path: Path) -> None:
    """Neither its text under another id, nor a positive of the same query."""
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


def test_groups_never_change(made: TrainingSet) -> None:
    groups = [made.group(row, epoch=1, negatives=12, seed=3) for row in (4, 17)]
    assert [",".join(passage.id for passage in group.passages) for group in groups] == KNOWN_GROUPS
    assert made.order(1, 3).tolist()[:6] == KNOWN_ORDER
    assert sorted(made.order(1, 3).tolist()) == list(range(40))
