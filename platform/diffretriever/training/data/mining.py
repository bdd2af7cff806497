"""Hard negatives out of ranked passages: which to take, and the record that they make with their query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from diffretriever.collections.records import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.training_data import MineNegativesJob
from diffretriever.scoring.hits import Hit
from diffretriever.training.data.examples import Checked, Example, passage_key, text_key

_CACHED_PASSAGES = 100_000


class Mined(NamedTuple):
    """What a ranking gives a query."""

    negatives: list[Hit]
    """Best first."""
    positives: dict[str, float]
    """Score of each positive that is in the ranking, by the positive's own id."""


class Corpus:
    """The passages of an index by id: where they are, and what each says.

    Takes some 150 bytes of memory a passage, and what is cached.
    """

    def __init__(self, index: PassageIndex) -> None:
        """Read the index once."""
        self._index = index
        self._rows: dict[str, int] = {}
        self._cache: dict[str, str] = {}
        keys: list[np.ndarray] = [np.empty(0, np.uint64)]
        for batch in index.batches(["id", "title", "text"], 8192):
            passages = [Passage(**row) for row in batch.to_pylist()]
            first = len(self._rows)
            self._rows.update((passage.id, first + i) for i, passage in enumerate(passages))
            keys.append(np.fromiter(map(passage_key, passages), np.uint64))
        self._keys = np.concatenate(keys)

    def key_of(self, passage_id: str) -> int:
        """Return the key of what a passage says; see `examples.passage_key`."""
        return int(self._keys[self._rows[passage_id]])

    def fields(self, ids: Iterable[str]) -> dict[str, str]:
        """Return each passage as the inside of a JSON object: docid, title and text."""
        wanted = set(ids)
        found = {i: self._cache[i] for i in wanted & self._cache.keys()}
        rows = np.sort(np.array([self._rows[i] for i in wanted - found.keys()], np.int64))
        read: dict[str, str] = {}
        if len(rows):
            for row in self._index.take(rows, ["id", "title", "text"]).to_pylist():
                read[row["id"]] = passage_fields(Passage(**row))
        if len(self._cache) + len(read) > _CACHED_PASSAGES:
            self._cache = {}
        self._cache |= read
        return found | read


def choose_negatives(record: Checked, hits: Sequence[Hit], corpus: Corpus, job: MineNegativesJob) -> Mined:
    """Choose the negatives of a query among its best passages.

    Left out are the positives, whatever says the same as one of them, as the query itself or as a better passage, and
    the passage with the query's own id; then the `skip_top` best, and what scores more than `max_share` of the best
    positive.

    Args:
        record: the query with its positives.
        hits: its best `depth` passages, best first.
        corpus: of the index that was searched.
        job: the settings.
    """
    example = record.example
    id_of = dict(zip(record.keys, (passage.id for passage in example.positives), strict=False))
    own_ids = set(id_of.values())
    taken = {text_key(example.query)}
    positives: dict[str, float] = {}
    others: list[Hit] = []
    for passage_id, score in hits:
        key = corpus.key_of(passage_id)
        if passage_id in own_ids or key in id_of:
            positives.setdefault(passage_id if passage_id in own_ids else id_of[key], score)
        elif passage_id != example.query_id and key not in taken:
            others.append((passage_id, score))
            taken.add(key)
    return Mined(_allowed(others[job.skip_top :], positives, job)[: job.negatives], positives)


def _allowed(hits: list[Hit], positives: dict[str, float], job: MineNegativesJob) -> list[Hit]:
    if job.max_share is None:
        return hits
    if not positives:
        return []
    limit = job.max_share * max(positives.values())
    return [hit for hit in hits if hit[1] <= limit]


def mined_line(example: Example, found: Mined, fields: dict[str, str]) -> str:
    """Return the record of a query in Tevatron's layout; a passage whose score is known has it as `score`.

    Args:
        example: the query with its positives.
        found: what was mined for it.
        fields: `Corpus.fields` of the negatives at least.
    """
    query = f'"query_id": {_json(example.query_id)}, "query": {_json(example.query)}'
    positives = [_object(passage_fields(p), found.positives.get(p.id)) for p in example.positives]
    negatives = [_object(fields[passage_id], score) for passage_id, score in found.negatives]
    lists = f'"positive_passages": [{", ".join(positives)}], "negative_passages": [{", ".join(negatives)}]'
    return f"{{{query}, {lists}}}\n"


def passage_fields(passage: Passage) -> str:
    """Return a passage as the inside of a JSON object."""
    return f'"docid": {_json(passage.id)}, "title": {_json(passage.title)}, "text": {_json(passage.text)}'


def _object(fields: str, score: float | None) -> str:
    return f"{{{fields}}}" if score is None else f'{{{fields}, "score": {score!r}}}'


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
