"""A small collection out of a large one, for studies that measure many models: some queries, their passages, others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from diffretriever.schemas.settings import JobConfig

_LONG = 100
"""Words."""


class SampleCollection(JobConfig):
    """Write a sample of a collection in BEIR's layout; the same settings always take the same texts."""

    collection: str
    """What to sample, as encode_beir.py takes it."""
    split: str
    """Split of its qrels, and of those that are written."""
    queries: PositiveInt = 500
    """Queries with judgements that are kept."""
    halves: bool = False
    """Make long queries instead: the second half of a passage of at least 100 words asks for its first half."""
    passages: PositiveInt = 1000
    """Passages: all that are judged for these queries, and others up to this number."""
    seed: NonNegativeInt = 0
    """Another seed takes other texts."""
    output: Path
    """Folder to write, which must not be there yet."""


def main(config: SampleCollection) -> None:
    """Write the folder and say what is in it."""
    from diffretriever.collections import open_collection
    from diffretriever.collections.records import Passage
    from diffretriever.core.files import whole_folder

    collection = open_collection(config.collection)
    passages = [record for record in collection.records() if isinstance(record, Passage)]
    if config.halves:
        long = [passage.id for passage in passages if len(passage.text.split()) >= _LONG]
        chosen = {*_first(config.seed, long, config.queries)}
        judged = {passage_id: {passage_id: 1} for passage_id in chosen}
        texts_of = {passage.id: _half(passage.text, 1) for passage in passages if passage.id in chosen}
        passages = [replace(p, text=_half(p.text, 0)) if p.id in chosen else p for p in passages]
    else:
        judged = collection.qrels(config.split)
        texts_of = {query.id: query.text for query in collection.queries(config.split) if query.id in judged}
    kept = {query_id: judged[query_id] for query_id in _first(config.seed, judged, config.queries)}
    wanted = {passage_id for passages in kept.values() for passage_id in passages}
    others = [passage.id for passage in passages if passage.id not in wanted]
    wanted.update(_first(config.seed, others, max(0, config.passages - len(wanted))))
    with whole_folder(config.output) as folder:
        texts = [{"_id": p.id, "title": p.title, "text": p.text} for p in passages if p.id in wanted]
        _write(folder / "corpus.jsonl", texts)
        _write(folder / "queries.jsonl", [{"_id": query_id, "text": texts_of[query_id]} for query_id in kept])
        lines = [f"{query_id}\t{p}\t{grade}" for query_id, grades in kept.items() for p, grade in grades.items()]
        (folder / "qrels").mkdir()
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (folder / "qrels" / f"{config.split}.tsv").write_text(text, "utf-8")
    print(f"{config.output}: {len(texts):,} passages, {len(kept):,} queries")


def _half(text: str, which: int) -> str:
    words = text.split()
    return " ".join((words[: len(words) // 2], words[len(words) // 2 :])[which])


def _first(seed: int, ids: Iterable[str], count: int) -> list[str]:
    def place(item: str) -> bytes:
        return hashlib.blake2b(f"{seed} {item}".encode(), digest_size=16).digest()

    return sorted(ids, key=place)[:count]


def _write(file: Path, records: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


if __name__ == "__main__":
    main(SampleCollection.from_command_line())
