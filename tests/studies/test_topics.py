"""What a collection is about: counts against a loop, topics of made-up vectors, and what cannot be described."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import bm25_manifest, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.retriever import Bm25Retriever, LibraryRetriever
from diffretriever.schemas.serve import ReadWord
from diffretriever.studies import topics
from diffretriever.studies.topics import check_readable, describe
from diffretriever.studies.topics_config import DescribeJob, Example
from diffretriever.vectors.representations import read_vectors


def job(index: PassageIndex, **fields: Any) -> DescribeJob:
    return DescribeJob.model_validate({"index": index.uri, **fields})


def test_slots_are_counted_over_all_passages(index: PassageIndex, encoder: Encoder) -> None:
    check_readable(index)
    found = describe(index, encoder, job(index, words=3))
    assert (found.passages, found.read) == (60, 60)
    vectors_MH, offsets = read_vectors(index.dataset.to_table(columns=["reps"]))
    readings = encoder.read(vectors_MH, 3)
    counts: dict[int, Counter[str]] = {}
    for first, end in pairwise(offsets.tolist()):
        for number, reading in enumerate(readings[first:end]):
            counts.setdefault(number, Counter()).update(each.word.casefold() for each in reading)
    assert [slot.slot for slot in found.slots] == list(counts)
    for slot in found.slots:
        assert slot.passages == 60
        expected = sorted(counts[slot.slot].values(), reverse=True)[:3]
        assert [each.share for each in slot.words] == [count / 60 for count in expected]
        assert all(counts[slot.slot][each.word] == round(each.share * 60) for each in slot.words)
    assert sum(topic.passages for topic in found.topics) == 60
    assert [topic.passages for topic in found.topics] == sorted((t.passages for t in found.topics), reverse=True)


def test_topics_are_what_was_made_up() -> None:
    """Two groups of passages around two directions, each with a word of its own and one that all say."""
    random = np.random.default_rng(0)
    centres = {"bees": np.eye(8)[0], "tides": np.eye(8)[1]}
    said = topics._Said()
    for number in range(30):
        name = "bees" if number % 3 else "tides"
        vectors_MH = np.stack([centres[name] + 0.1 * random.normal(size=8) for _ in range(2)]).astype(np.float16)
        reading = [ReadWord(word=word, logit=1.0) for word in ("the", name.title())]
        said.add(Example(id=f"{name}{number}", title=""), vectors_MH, [reading, reading])
    large, small = topics._topics(said, job_of_two())
    assert (large.passages, large.words[0]) == (20, "bees")
    assert (small.passages, small.words[0]) == (10, "tides")
    assert large.share == pytest.approx(2 / 3)
    assert all(example.id.startswith("tides") for example in small.examples)
    assert len(small.examples) == 3


def job_of_two() -> DescribeJob:
    return DescribeJob(index="nowhere", topics=2)


def test_what_cannot_be_described(encoder: Encoder, tmp_path: Path) -> None:
    words = PassageIndex.create(str(tmp_path / "words"), bm25_manifest(Bm25Retriever()))
    with pytest.raises(ValueError, match="has no vectors: bm25 goes by the words"):
        check_readable(words)
    empty = PassageIndex.create(str(tmp_path / "empty"), manifest_of(encoder))
    with pytest.raises(ValueError, match="holds no passages"):
        check_readable(empty)
    library = LibraryRetriever.model_validate({"backbone": {"source": "x"}})
    headless = PassageIndex.create(
        str(tmp_path / "headless"), manifest_of(encoder).model_copy(update={"retriever": library})
    )
    with pytest.raises(ValueError, match="method library, whose model has no output head"):
        check_readable(headless)
