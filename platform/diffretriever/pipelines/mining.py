"""Mines hard negatives: searches for training queries in parts, stores each part, and joins them at the end.

BM25 indexes are searched in threads, other indexes by batch search with one executor.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffretriever.collections import BadRecord, read_run
from diffretriever.collections.records import Passage
from diffretriever.core.files import exists, json_digest, read_model, remove, whole_file, write_text
from diffretriever.core.ledger import Ledger
from diffretriever.core.progress import Progress
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.blocks import QUERIES_PER_BLOCK
from diffretriever.pipelines.executor import LocalExecutor, executor_for, few_queries
from diffretriever.pipelines.training_data import quarantine
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.search import BatchSearchJob
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.searcher import check_modes
from diffretriever.training.data.examples import Checked, Example, passage_key, text_key
from diffretriever.training.data.sources import ExampleSource, open_source
from diffretriever.vectors.hits import Hit

_DECISIVE = {"source", "split", "mode", "depth", "negatives", "max_share"}
"""Settings that affect results."""
_SEARCH = ("index", "backbone", "adapter", "encoders")
"""Settings passed on to the batch search."""
_QUERIES_PER_PART = {"bm25": 1000, "encoded": 20_000}
# gzip level: higher levels take most of the job's time and save a few percent.
_COMPRESSION = 2

Search = Callable[[Sequence[str]], Sequence[Sequence[Hit]]]
"""Takes queries; returns the hits of each."""


def mine_negatives(job: MineNegativesJob) -> MinedNegatives:
    """Mine negatives for the queries of a source. A killed job resumes; a finished one returns at once.

    Raises:
        ValueError: The index is missing or lacks the mode, the input is bad, or the output belongs to another job.
    """
    started = time.monotonic()
    index = PassageIndex.open(job.index)
    job = job.model_copy(update={"mode": _mode(job, index)})
    source = open_source(job.source, job.split)
    manifest = _describe(job, index, source)
    finished = _finished(job, manifest.identity)
    if finished is not None:
        return finished
    work = _sibling(job, "parts")
    with WriterLock(str(work)):
        identity = manifest.model_dump(mode="json", include={"index", "version", "fingerprint", "settings"})
        ledger = Ledger(work, {**identity, "source": source.state()})
        with quarantine(job.on_bad_input, _sibling(job, "quarantine.jsonl")) as reject:
            counts = _mine(job, index, work, ledger, _valid(source, reject))
        if not counts["queries"]:
            raise ValueError(f"{job.source}: no example to mine for")
        with whole_file(job.output) as sink:
            sink.writelines(_lines(ledger))
        manifest = manifest.model_copy(update={**counts, "seconds": time.monotonic() - started})
        write_text(_sibling(job, "json"), manifest.model_dump_json(indent=2) + "\n")
        ledger.clear()
    return manifest


def _mode(job: MineNegativesJob, index: PassageIndex) -> Mode:
    retriever = index.manifest.retriever
    if job.mode is None:
        return "hybrid" if "hybrid" in retriever.modes else retriever.modes[0]
    check_modes([job.mode], retriever.offered_modes, job.index)
    return job.mode


def _describe(job: MineNegativesJob, index: PassageIndex, source: ExampleSource) -> MinedNegatives:
    """Return the job's manifest without its counts."""
    settings: dict[str, Any] = job.model_dump(mode="json", include=_DECISIVE)
    return MinedNegatives(
        identity=json_digest([index.uri, index.version, index.manifest.fingerprint, source.state(), settings]),
        index=index.uri,
        version=index.version,
        fingerprint=index.manifest.fingerprint,
        retriever=index.manifest.title,
        settings=settings,
    )


def _sibling(job: MineNegativesJob, end: str) -> Path | StorePath:
    return job.output.with_name(f"{job.output.name}.{end}")


def _finished(job: MineNegativesJob, identity: str) -> MinedNegatives | None:
    path = _sibling(job, "json")
    if not exists(job.output) or not exists(path):
        if exists(job.output) and not exists(_sibling(job, "parts")):
            raise ValueError(f"{job.output} is there and was not mined: give another --output, or remove it")
        return None
    manifest = read_model(path, MinedNegatives, "give another --output, or remove both files and mine again")
    if manifest.identity != identity:
        raise ValueError(f"{job.output} was mined otherwise, see {path}: give another --output, or remove it")
    return manifest


def _valid(source: ExampleSource, reject: Callable[[Sequence[BadRecord]], None]) -> Iterator[Checked]:
    for record in source.records():
        if isinstance(record, BadRecord):
            reject([record])
        else:
            yield record


def _lines(ledger: Ledger) -> Iterator[bytes]:
    for number in count():
        lines = ledger.get(f"{number:06}.lines")
        if lines is None:
            return
        yield lines


def _mine(
    job: MineNegativesJob, index: PassageIndex, work: Path | StorePath, ledger: Ledger, records: Iterator[Checked]
) -> Counter[str]:
    is_bm25 = not index.manifest.retriever.has_weights
    size = _QUERIES_PER_PART["bm25" if is_bm25 else "encoded"]
    threads = (os.cpu_count() or 1) if is_bm25 else 1
    first = list(islice(records, QUERIES_PER_BLOCK + 1))
    rest = chain(first, records)
    parts = enumerate(iter(lambda: list(islice(rest, size)), []))
    search_job = BatchSearchJob(
        **{name: getattr(job, name) for name in _SEARCH},
        queries=work / "queries.jsonl",
        output=work / "search",
        modes=(job.mode,),
        top_k=job.depth,
        exclude_self=False,
    )
    search: Search = partial(Bm25Search(index).search, k=job.depth) if is_bm25 else partial(_search, search_job)
    mine = partial(_mine_part, job, Corpus(index), ledger, search)
    counts: Counter[str] = Counter()
    small = few_queries(index, len(first))
    executor = LocalExecutor(search_job.encoding) if is_bm25 else executor_for(search_job.encoding, small=small)
    with executor, ThreadPoolExecutor(threads) as pool, Progress("mining", None, unit="queries") as progress:
        # In batches: a source need not fit in memory.
        while batch := list(islice(parts, 2 * threads)):
            for part_counts in pool.map(mine, *zip(*batch, strict=True)):
                counts.update(part_counts)
                progress.update(part_counts["queries"])
    return counts


def _mine_part(
    job: MineNegativesJob, corpus: Corpus, ledger: Ledger, search: Search, number: int, records: list[Checked]
) -> dict[str, int]:
    earlier = ledger.get_json(f"{number:06}.json")
    if earlier is not None:
        return dict(earlier)
    hits = search([record.example.query for record in records])
    mined = [choose_negatives(record, ranked, corpus, job) for record, ranked in zip(records, hits, strict=True)]
    passages = corpus.passages(passage for chosen in mined for passage, _ in chosen.negatives)
    data = "".join(
        mined_line(record.example, chosen, passages) for record, chosen in zip(records, mined, strict=True)
    ).encode()
    if job.output.suffix == ".gz":
        data = gzip.compress(data, _COMPRESSION, mtime=0)
    counts = {
        "queries": len(mined),
        "negatives": sum(len(chosen.negatives) for chosen in mined),
        "incomplete": sum(len(chosen.negatives) < job.negatives for chosen in mined),
        "positives_found": sum(bool(chosen.positives) for chosen in mined),
    }
    ledger.put(f"{number:06}.lines", data)
    ledger.put_json(f"{number:06}.json", counts)
    return counts


def _search(job: BatchSearchJob, queries: Sequence[str]) -> Sequence[Sequence[Hit]]:
    assert job.queries is not None, "it is set above"
    lines = (json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(queries))
    write_text(job.queries, "".join(lines))
    search_batch(job)
    run = read_run(job.output / f"{job.modes[0]}.trec")
    remove(job.output)
    return [list(run.get(str(number), {}).items()) for number in range(len(queries))]


class Corpus:
    """Passages of an index by id; uses about 150 bytes of memory per passage."""

    def __init__(self, index: PassageIndex) -> None:
        """Read the index once."""
        self._index = index
        self._rows: dict[str, int] = {}
        keys: list[np.ndarray] = [np.empty(0, np.uint64)]
        for batch in index.batches(["id", "title", "text"], 8192):
            passages = [Passage(**row) for row in batch.to_pylist()]
            first = len(self._rows)
            self._rows.update((passage.id, first + i) for i, passage in enumerate(passages))
            keys.append(np.fromiter(map(passage_key, passages), np.uint64))
        self._keys = np.concatenate(keys)

    def key_of(self, passage_id: str) -> int:
        """Return the key of a passage's text; see `examples.passage_key`."""
        return int(self._keys[self._rows[passage_id]])

    def passages(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Return passages by id."""
        rows = np.sort(np.array([self._rows[i] for i in set(ids)], np.int64))
        if not len(rows):
            return {}
        return {row["id"]: Passage(**row) for row in self._index.take(rows, ["id", "title", "text"]).to_pylist()}


class Mined(NamedTuple):
    """The passages of a ranking that training uses."""

    negatives: list[Hit]
    """Best first."""
    positives: dict[str, float]
    """Score of each positive that is in the ranking, by the positive's own id."""


def choose_negatives(record: Checked, hits: Sequence[Hit], corpus: Corpus, job: MineNegativesJob) -> Mined:
    """Choose a query's negatives among its best `depth` passages.

    Excludes positives, the query's own id, texts equal to the query, a positive or a better passage, and passages
    that score more than `max_share` of the best positive.
    """
    example = record.example
    id_of = {passage_key(passage): passage.id for passage in example.positives}
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
    if job.max_share is not None:
        limit = job.max_share * max(positives.values()) if positives else -np.inf
        others = [hit for hit in others if hit[1] <= limit]
    return Mined(others[: job.negatives], positives)


def mined_line(example: Example, mined: Mined, passages: dict[str, Passage]) -> str:
    """Return a query's record in Tevatron's layout; passages with a known score have it as `score`."""
    record = {
        "query_id": example.query_id,
        "query": example.query,
        "positive_passages": [_fields(passage, mined.positives.get(passage.id)) for passage in example.positives],
        "negative_passages": [_fields(passages[passage_id], score) for passage_id, score in mined.negatives],
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _fields(passage: Passage, score: float | None) -> dict[str, object]:
    fields: dict[str, object] = {"docid": passage.id, "title": passage.title, "text": passage.text}
    return fields if score is None else {**fields, "score": score}
