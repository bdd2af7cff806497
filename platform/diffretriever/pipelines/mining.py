"""A mining job: search for the training queries a part at a time, keep each part, join them at the end.

A BM25 index is searched in this process by threads, any other by batch search, for which the executor is kept open.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from diffretriever.collections import BadRecord, read_run
from diffretriever.files import exists, json_digest, read_model, remove, whole_file, write_text
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.ledger import Ledger
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.blocks import QUERIES_PER_BLOCK
from diffretriever.pipelines.executor import LocalExecutor, executor_for, few_queries
from diffretriever.progress import Progress
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.places import StorePath
from diffretriever.schemas.search import BatchSearchJob, SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob
from diffretriever.scoring.hits import Hit
from diffretriever.search.base import check_modes
from diffretriever.search.bm25 import Bm25Searcher
from diffretriever.training.data.examples import Checked
from diffretriever.training.data.mining import Corpus, choose_negatives, mined_line
from diffretriever.training.data.preparation import quarantine
from diffretriever.training.data.sources import ExampleSource, open_source

_DECISIVE = ("split", "mode", "depth", "negatives", "skip_top", "max_share", "maxsim", "search_budget", "score_dtype")
"""Settings that results depend on."""

_QUERIES_PER_PART = {"bm25": 1000, "encoded": 20_000}
# Of gzip: more takes most of the job's time for a few percent.
_COMPRESSION = 2


def mine_negatives(job: MineNegativesJob) -> MinedNegatives:
    """Mine negatives for the queries of a source.

    What an attempt that was killed had finished is not done again; where this very job is done, nothing is.

    Raises:
        ValueError: no index there, bad input, a mode that it does not offer, or the output of another job.
    """
    started = time.monotonic()
    index = PassageIndex.open(job.index)
    job = job.model_copy(update={"mode": _mode(job, index)})
    source = open_source(job.source, job.split)
    about = _describe(job, index, source)
    done = _finished(job, about.identity)
    if done is not None:
        return done
    work = _path_beside(job, "parts")
    with WriterLock(str(work)):
        made_from = about.model_dump(mode="json", include={"index", "version", "fingerprint", "settings"})
        ledger = Ledger(work, {**made_from, "source": source.state()})
        with quarantine(job.on_bad_input, _path_beside(job, "quarantine.jsonl")) as put:
            counts = _Parts(job, index, work, ledger).run(_good(source, put))
        if not counts["queries"]:
            raise ValueError(f"{job.source}: no example to mine for")
        with whole_file(job.output) as sink:
            sink.writelines(_lines(ledger))
        made = about.model_copy(update={**counts, "seconds": time.monotonic() - started})
        write_text(_path_beside(job, "json"), made.model_dump_json(indent=2) + "\n")
        ledger.clear()
    return made


def _mode(job: MineNegativesJob, index: PassageIndex) -> Mode:
    retriever = index.manifest.retriever
    if job.mode is None:
        return "hybrid" if "hybrid" in retriever.modes else retriever.modes[0]
    check_modes([job.mode], retriever.offered_modes, job.index)
    return job.mode


def _describe(job: MineNegativesJob, index: PassageIndex, source: ExampleSource) -> MinedNegatives:
    """Return what the job will say of itself, without its counts."""
    settings: dict[str, Any] = {"source": job.source, **job.model_dump(mode="json", include=set(_DECISIVE))}
    return MinedNegatives(
        identity=json_digest([index.uri, index.version, index.manifest.fingerprint, source.state(), settings]),
        index=index.uri,
        version=index.version,
        fingerprint=index.manifest.fingerprint,
        retriever=index.manifest.title,
        settings=settings,
    )


def _path_beside(job: MineNegativesJob, end: str) -> Path | StorePath:
    return job.output.with_name(f"{job.output.name}.{end}")


def _finished(job: MineNegativesJob, identity: str) -> MinedNegatives | None:
    """Return what the job said when it was done, None where it is not.

    Raises:
        ValueError: the output is that of another job.
    """
    about = _path_beside(job, "json")
    if not exists(job.output) or not exists(about):
        if exists(job.output) and not exists(_path_beside(job, "parts")):
            raise ValueError(f"{job.output} is there and was not mined: give another --output, or remove it")
        return None
    made = read_model(about, MinedNegatives, "give another --output, or remove both files and mine again")
    if made.identity != identity:
        raise ValueError(f"{job.output} was mined otherwise, see {about}: give another --output, or remove it")
    return made


def _good(source: ExampleSource, put: Callable[[Sequence[BadRecord]], None]) -> Iterator[Checked]:
    """Yield the usable examples, and put the others into the quarantine."""
    for record in source.records():
        if isinstance(record, BadRecord):
            put([record])
        else:
            yield record


def _lines(ledger: Ledger) -> Iterator[bytes]:
    """Yield the lines of each part, in the order of the source."""
    for number in count():
        lines = ledger.get(_lines_name(number))
        if lines is None:
            return
        yield lines


class _Parts:
    """The parts of a job: some queries each, searched for, chosen from and kept by themselves.

    Entries of the ledger: the lines of a part, and then its counts, which say that it is complete.
    """

    def __init__(self, job: MineNegativesJob, index: PassageIndex, work: Path | StorePath, ledger: Ledger) -> None:
        self._job, self._work, self._ledger = job, work, ledger
        self._index, self._corpus = index, Corpus(index)
        self._searcher = None if index.manifest.retriever.has_weights else Bm25Searcher(index)

    def run(self, records: Iterable[Checked]) -> Counter[str]:
        """Do the parts that no attempt has done; return the counts of all."""
        is_bm25 = self._searcher is not None
        size = _QUERIES_PER_PART["bm25" if is_bm25 else "encoded"]
        workers = (os.cpu_count() or 1) if is_bm25 else 1
        records = iter(records)
        first = list(islice(records, QUERIES_PER_BLOCK + 1))
        parts = enumerate(_chunks(chain(first, records), size))
        counts: Counter[str] = Counter()
        small = few_queries(self._index, len(first))
        executor = LocalExecutor(self._job) if is_bm25 else executor_for(self._job, small=small)
        with executor, ThreadPoolExecutor(workers) as pool, Progress("mining", None, unit="queries") as progress:
            # Some at a time: a source need not fit in memory.
            while some := list(islice(parts, 2 * workers)):
                for found in pool.map(lambda part: self._part(*part), some):
                    counts.update(found)
                    progress.update(found["queries"])
        return counts

    def _part(self, number: int, records: list[Checked]) -> dict[str, int]:
        """Return the counts of a part, done now or by an earlier attempt."""
        earlier = self._ledger.get_json(_counts_name(number))
        if earlier is not None:
            return dict(earlier)
        hits = self._search(number, [record.example.query for record in records])
        found = [
            choose_negatives(record, ranked, self._corpus, self._job)
            for record, ranked in zip(records, hits, strict=True)
        ]
        fields = self._corpus.fields(passage for each in found for passage, _ in each.negatives)
        pairs = zip(records, found, strict=True)
        data = "".join(mined_line(record.example, each, fields) for record, each in pairs).encode()
        if self._job.output.suffix == ".gz":
            data = gzip.compress(data, _COMPRESSION, mtime=0)
        counts = {
            "queries": len(found),
            "negatives": sum(len(each.negatives) for each in found),
            "incomplete": sum(len(each.negatives) < self._job.negatives for each in found),
            "positives_found": sum(bool(each.positives) for each in found),
        }
        self._ledger.put(_lines_name(number), data)
        self._ledger.put_json(_counts_name(number), counts)
        return counts

    def _search(self, number: int, queries: Sequence[str]) -> Sequence[Sequence[Hit]]:
        job = self._job
        if self._searcher is not None:
            return self._searcher.search(queries, k=job.depth)["sparse"]
        assert job.mode is not None, "it is chosen by now"
        asked, output = self._work / f"{number:06}.queries.jsonl", self._work / f"{number:06}.search"
        lines = (json.dumps({"id": str(place), "text": text}) + "\n" for place, text in enumerate(queries))
        write_text(asked, "".join(lines))
        search_batch(
            BatchSearchJob(
                **{name: getattr(job, name) for name in {**RayConfig.model_fields, **SearchOptions.model_fields}},
                queries=asked,
                output=output,
                modes=(job.mode,),
                top_k=job.depth,
                exclude_self=False,
                queries_at_once=len(queries),
            )
        )
        run = read_run(output / f"{job.mode}.trec")
        remove(output)
        remove(asked)
        return [list(run.get(str(place), {}).items()) for place in range(len(queries))]


def _lines_name(number: int) -> str:
    return f"{number:06}.lines"


def _counts_name(number: int) -> str:
    return f"{number:06}.json"


def _chunks(records: Iterator[Checked], size: int) -> Iterator[list[Checked]]:
    while chunk := list(islice(records, size)):
        yield chunk
