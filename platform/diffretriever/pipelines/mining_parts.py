"""The parts of a mining job: some queries each, searched for, chosen from and written by themselves."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from diffretriever.collections import read_run
from diffretriever.files import write_bytes, write_text
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.progress import bar
from diffretriever.scoring.topk import Hits
from diffretriever.search.bm25 import Bm25Searcher
from diffretriever.training.example_records import Checked
from diffretriever.training.mining import Corpus, mined, mined_line
from schemas.batch_search import BatchSearchJob
from schemas.jobs import RayConfig, SearchOptions
from schemas.retriever import Bm25Retriever
from schemas.training_data import MineNegativesJob

_QUERIES_PER_PART = {"here": 1000, "on Ray": 20_000}
_COMPRESSION = 2

Search: TypeAlias = Callable[[Path, Sequence[str]], Hits]
"""A part's file and its queries to their hits."""


class MiningParts:
    """The parts of a job: the lines of some queries each, and counts beside them that say that they are complete."""

    def __init__(self, job: MineNegativesJob, work: Path, corpus: Corpus) -> None:
        self._job, self._work, self._corpus = job, work, corpus

    def run(self, index: PassageIndex, records: Iterable[Checked]) -> Counter[str]:
        """Do the parts that no attempt has done; return the counts of all."""
        here = isinstance(index.manifest.retriever, Bm25Retriever)
        size = _QUERIES_PER_PART["here" if here else "on Ray"]
        search = _bm25_search(index, self._job) if here else _batch_search(self._job)
        workers = (os.cpu_count() or 1) if here else 1
        parts = enumerate(_chunks(iter(records), size))
        counts: Counter[str] = Counter()
        session = nullcontext() if here else ray_session(self._job)
        with session, ThreadPoolExecutor(workers) as pool, bar("mining", "query") as counted:
            # Some at a time: a source need not fit in memory.
            while some := list(islice(parts, 2 * workers)):
                for found in pool.map(lambda part: self._part(part[0], part[1], search), some):
                    counts.update(found)
                    counted.update(found["queries"])
        return counts

    def _part(self, number: int, records: list[Checked], search: Search) -> dict[str, int]:
        lines, counts = self._work / f"{number:06}.lines", self._work / f"{number:06}.json"
        if counts.exists():
            return dict(json.loads(counts.read_text("utf-8")))
        hits = search(lines, [record.example.query for record in records])
        found = [mined(record, ranked, self._corpus, self._job) for record, ranked in zip(records, hits, strict=True)]
        fields = self._corpus.fields(passage for each in found for passage, _ in each.negatives)
        pairs = zip(records, found, strict=True)
        data = "".join(mined_line(record.example, each, fields) for record, each in pairs).encode()
        write_bytes(lines, gzip.compress(data, _COMPRESSION, mtime=0) if self._job.output.suffix == ".gz" else data)
        counted = {
            "queries": len(found),
            "negatives": sum(len(each.negatives) for each in found),
            "incomplete": sum(len(each.negatives) < self._job.negatives for each in found),
            "positives_found": sum(bool(each.positives) for each in found),
        }
        write_text(counts, json.dumps(counted))
        return counted


def _bm25_search(index: PassageIndex, job: MineNegativesJob) -> Search:
    searcher = Bm25Searcher(index)
    return lambda _, queries: searcher.search(queries, top_k=job.depth)["sparse"]


def _batch_search(job: MineNegativesJob) -> Search:
    shared = {name: getattr(job, name) for name in {**RayConfig.model_fields, **SearchOptions.model_fields}}
    mode = job.mode
    assert mode is not None, "it is chosen by now"

    def search(part: Path, queries: Sequence[str]) -> Hits:
        asked, output = part.with_suffix(".queries.jsonl"), part.with_suffix(".search")
        lines = (json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(queries))
        write_text(asked, "".join(lines))
        search_batch(
            BatchSearchJob(
                **shared,
                queries=asked,
                output=output,
                modes=(mode,),
                top_k=job.depth,
                exclude_self=False,
                queries_at_once=len(queries),
            )
        )
        run = read_run(output / f"{mode}.trec")
        shutil.rmtree(output)
        asked.unlink()
        return [list(run.get(str(number), {}).items()) for number in range(len(queries))]

    return search


def _chunks(records: Iterator[Checked], size: int) -> Iterator[list[Checked]]:
    while chunk := list(islice(records, size)):
        yield chunk
