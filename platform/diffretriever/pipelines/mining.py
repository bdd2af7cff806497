"""A mining job: search for the training queries a part at a time, keep each part, join them at the end.

A BM25 index is searched in this process by threads, any other by batch search on Ray.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from diffretriever.collections import BadRecord
from diffretriever.files import whole_file, write_text
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.mining_parts import MiningParts
from diffretriever.search.base import check_modes
from diffretriever.training.example_files import ExampleSource, open_source
from diffretriever.training.example_records import Checked
from diffretriever.training.mining import Corpus
from diffretriever.training.preparation import quarantine
from schemas.retriever_parts import Mode
from schemas.training_data import MinedNegatives, MineNegativesJob

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
