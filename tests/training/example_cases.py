"""Small training data in every supported format."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from diffretriever.collections.records import Passage
from diffretriever.pipelines.training_data import Inputs, checked_block, open_inputs, write_training_set
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.data.examples import Checked, Example, keys_of
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.data.training_set_writer import ExampleBlock

WORDS = "slab heat wing flow mach shock plate jet layer drag lift tube cone wake gust".split()  # noqa: SIM905


def passage(number: int) -> Passage:
    """Return one of many passages that all differ."""
    chance = random.Random(number)
    return Passage(f"d{number}", f"Title {number}", f"{number} " + " ".join(chance.choices(WORDS, k=12)))


def examples(count: int, *, positives: int = 2, negatives: int = 5) -> list[Example]:
    """Return examples that share some of their passages, each passage a positive of one query only."""
    made = []
    for number in range(count):
        own = [passage(number * positives + i) for i in range(positives)]
        others = [passage(((number + 1) * positives + 3 * i) % (count * positives + 40)) for i in range(negatives)]
        others = [other for other in others if other not in own]
        query = f"what of {' '.join(WORDS[(number + i) % 15] for i in range(4))} {number}"
        made.append(Example(f"q{number}", query, tuple(own), tuple(others)))
    return made


def tevatron(example: Example) -> dict[str, Any]:
    """Return an example in Tevatron's layout."""
    return {
        "query_id": example.query_id,
        "query": example.query,
        "positive_passages": [_fields(p) for p in example.positives],
        "negative_passages": [_fields(p) for p in example.negatives],
    }


def _fields(found: Passage) -> dict[str, str]:
    return {"docid": found.id, "title": found.title, "text": found.text}


def jsonl(records: Iterable[object]) -> str:
    """Return lines of JSON."""
    return "".join(json.dumps(record) + "\n" for record in records)


def write_beir(folder: Path, made: Sequence[Example], split: str = "train") -> Path:
    """Write the positives as a BEIR collection, with judgements of 0 and passages nobody asks for beside them."""
    (folder / "qrels").mkdir(parents=True)
    passages = {p.id: p for example in made for p in (*example.positives, *example.negatives)}
    corpus = [{"_id": p.id, "title": p.title, "text": p.text} for p in passages.values()]
    (folder / "corpus.jsonl").write_text(jsonl(corpus), "utf-8")
    (folder / "queries.jsonl").write_text(jsonl({"_id": e.query_id, "text": e.query} for e in made), "utf-8")
    judged = [f"{e.query_id}\t{p.id}\t{1 + i}\n" for e in made for i, p in enumerate(e.positives)]
    judged += [f"{e.query_id}\t{e.negatives[0].id}\t0\n" for e in made if e.negatives]
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged), "utf-8")
    return folder


def blocks_here(inputs: Inputs) -> Iterator[tuple[int, ExampleBlock]]:
    """Check all records in this process, as Ray tasks do."""
    held_out = keys_of(inputs.hold_out)
    return (checked_block(number, piece, held_out) for number, piece in inputs.pieces())


def prepared(job: PrepareTrainingJob) -> TrainingSet:
    """Prepare in this process and open the result."""
    inputs = open_inputs(job)
    write_training_set(job, inputs, blocks_here(inputs), lambda _: None)
    return TrainingSet.open(job.output)


def good(records: Iterable[object]) -> list[Example]:
    """Return the examples, none of the records being bad."""
    found = list(records)
    assert all(isinstance(record, Checked) for record in found), found
    return [record.example for record in found if isinstance(record, Checked)]
