"""The parts of a mining job: some queries each, searched for, chosen from and written by themselves."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from diffretriever.collections import BadRecord, read_run
from diffretriever.files import whole_file, write_bytes, write_text
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.progress import bar
from diffretriever.scoring.topk import Hits
from diffretriever.search.base import check_modes
from diffretriever.search.bm25 import Bm25Searcher
from diffretriever.training.data.examples import Checked
from diffretriever.training.data.mining import Corpus, mined, mined_line
from diffretriever.training.data.preparation import quarantine
from diffretriever.training.data.sources import ExampleSource, open_source
from schemas.retriever import Mode
from schemas.search import BatchSearchJob, SearchOptions
from schemas.settings import RayConfig
from schemas.training_data import MinedNegatives, MineNegativesJob

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
        here = not index.manifest.retriever.has_weights
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


_DECISIVE = ("split", "mode", "depth", "negatives", "skip_top", "max_share", "maxsim", "search_budget", "score_dtype")


def mine_negatives(job: MineNegativesJob) -> MinedNegatives:
    """Mine in the Ray session at hand, or in one of its own where Ray is needed.

    What an attempt that was killed had finished is not done again; where this very job is done, nothing is.

    Raises:
        ValueError: no index there, bad input, a mode that it does not offer, or the output of another job.
    """
    started = time.monotonic()
    index = PassageIndex.open(job.index)
    job = job.model_copy(update={"mode": _mode(job, index)})
    source = open_source(job.source, job.split)
    about = _about(job, index, source)
    done = _finished(job, about.identity)
    if done is not None:
        return done
    work = _beside(job, "parts")
    with WriterLock(str(work)):
        _claim(work, about.identity)
        with quarantine(job.on_bad_input, _beside(job, "quarantine.jsonl")) as put:
            counts = MiningParts(job, work, Corpus(index)).run(index, _good(source, put))
        if not counts["queries"]:
            raise ValueError(f"{job.source}: no example to mine for")
        with whole_file(job.output) as sink:
            for part in sorted(work.glob("*.lines")):
                with part.open("rb") as lines:
                    shutil.copyfileobj(lines, sink)
        made = about.model_copy(update={**counts, "seconds": time.monotonic() - started})
        write_text(_beside(job, "json"), made.model_dump_json(indent=2) + "\n")
        shutil.rmtree(work)
    return made


def _good(source: ExampleSource, put: Callable[[Sequence[BadRecord]], None]) -> Iterator[Checked]:
    for record in source.records():
        if isinstance(record, BadRecord):
            put([record])
        else:
            yield record


def _mode(job: MineNegativesJob, index: PassageIndex) -> Mode:
    offered = index.manifest.retriever.modes
    if job.mode is None:
        return "hybrid" if "hybrid" in offered else offered[0]
    check_modes([job.mode], offered, job.index)
    return job.mode


def _about(job: MineNegativesJob, index: PassageIndex, source: ExampleSource) -> MinedNegatives:
    settings: dict[str, Any] = {"source": job.source, **job.model_dump(mode="json", include=set(_DECISIVE))}
    values = [index.uri, index.version, index.manifest.fingerprint, source.state(), settings]
    return MinedNegatives(
        identity=hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest(),
        index=index.uri,
        version=index.version,
        fingerprint=index.manifest.fingerprint,
        retriever=index.manifest.title,
        settings=settings,
    )


def _beside(job: MineNegativesJob, end: str) -> Path:
    return job.output.with_name(f"{job.output.name}.{end}")


def _finished(job: MineNegativesJob, identity: str) -> MinedNegatives | None:
    """Return what the job said when it was done, None where it is not.

    Raises:
        ValueError: the output is that of another job.
    """
    about = _beside(job, "json")
    if not job.output.exists() or not about.exists():
        if job.output.exists() and not _beside(job, "parts").exists():
            raise ValueError(f"{job.output} is there and was not mined: give another --output, or remove it")
        return None
    made = MinedNegatives.model_validate_json(about.read_bytes())
    if made.identity != identity:
        raise ValueError(f"{job.output} was mined otherwise, see {about}: give another --output, or remove it")
    return made


def _claim(work: Path, identity: str) -> None:
    mark = work / "identity"
    if mark.exists() and mark.read_text("utf-8") != identity:
        raise ValueError(f"{work} holds an attempt at another job: give another --output, or remove it")
    write_text(mark, identity)
