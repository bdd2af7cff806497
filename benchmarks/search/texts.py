"""Texts to measure search on with vectors that a model made: collections, and documentation of installed packages."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

from pydantic import PositiveInt

from benchmarks.measuring import run
from diffretriever.schemas.settings import JobConfig


class BenchTexts(JobConfig):
    """Write a BEIR folder of many passages, with the collections' own questions and the documentation's summaries."""

    collections: tuple[str, ...] = ("pydoc",)
    """Taken whole, as encode_beir.py takes them, with the queries of their splits."""
    passages: PositiveInt = 60_000
    """In all: documentation of the packages of this environment fills up."""
    output: Path
    """Folder to write, which must not be there yet."""


def main(config: BenchTexts) -> None:
    """Write the folder and say what is in it."""
    from diffretriever.collections import Passage, Query, open_collection
    from diffretriever.collections.beir import write_beir_folder
    from diffretriever.collections.pydoc import passages_and_summaries
    from diffretriever.core.files import whole_folder
    from tools.docstrings import documented_in

    passages: list[Passage] = []
    queries: list[Query] = []
    qrels: dict[str, dict[str, int]] = {}
    for number, name in enumerate(config.collections):
        collection = open_collection(name)
        found = [each for each in collection.records() if isinstance(each, Passage)]
        passages += [Passage(f"{number}-{each.id}", each.title, each.text) for each in found]
        for split in collection.splits():
            judged = collection.qrels(split)
            queries += [Query(f"{number}-{q.id}", q.text) for q in collection.queries(split) if q.id in judged]
            own = {
                f"{number}-{q}": {f"{number}-{p}": grade for p, grade in grades.items()} for q, grades in judged.items()
            }
            qrels.update(own)
    installed = Path(sysconfig.get_path("purelib"))
    documented = {name.removeprefix(f"{installed.name}."): doc for name, doc in documented_in(installed)}
    documents, summaries = passages_and_summaries(documented)
    documents.sort(key=lambda passage: hashlib.blake2b(passage.id.encode()).digest())
    kept = documents[: max(0, config.passages - len(passages))]
    queries += [Query(f"summary:{p.id}", summaries[p.id]) for p in kept if p.id in summaries]
    qrels.update({f"summary:{p.id}": {p.id: 1} for p in kept if p.id in summaries})
    with whole_folder(config.output) as folder:
        write_beir_folder(folder, [*passages, *kept], queries, {"test": qrels})
    print(f"{config.output}: {len(passages) + len(kept):,} passages, {len(queries):,} queries")


if __name__ == "__main__":
    run(BenchTexts, main)
