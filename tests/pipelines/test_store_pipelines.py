"""Jobs on Ray over an index on an object store: files made by tasks, and a batch search that reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffretriever.files import cache_dir
from diffretriever.index.derived import folders_in
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.accelerate import make_on_ray
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.search import BatchSearchJob
from diffretriever.search.accelerate import accelerate, missing_files
from tests.pipelines.corpora import WORDS, line, write_corpus

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def runs(job: BatchSearchJob) -> dict[str, str]:
    return {mode: Path(place).read_text("utf-8") for mode, place in search_batch(job).runs.items()}


def fetched() -> set[Path]:
    """Return what lies in the cache of the workers."""
    return set((cache_dir() / "derived").glob("*-*/"))


def test_a_batch_search_by_files_that_tasks_made(bucket: str, checkpoint: Path, tmp_path: Path) -> None:
    place, before = f"{bucket}/index", fetched()
    encode_collection(
        EncodeJob(
            collection=str(write_corpus(tmp_path / "corpus", [line(i) for i in range(60)])),
            index=place,
            retriever="diffretriever-llada",
            backbone=str(checkpoint),
            encoders=1,
            rows_per_block=16,
            compact=False,
        )
    )
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"_id": f"q{n}", "text": WORDS[n]}) + "\n" for n in range(5)), "utf-8")
    job = BatchSearchJob(index=place, queries=queries, output=tmp_path / "streamed", top_k=30, encoders=1)
    streamed = runs(job)
    assert fetched() == before

    done = accelerate(AccelerateJob(index=place), lambda index, missing: make_on_ray(index, missing, 2))
    assert {kind: kept.made for kind, kept in done.files.items()} == {"codes": 4, "postings": 4}
    index = PassageIndex.open(place)
    assert missing_files(index) == []
    assert len(folders_in(place, "codes")) == 4
    assert runs(job.model_copy(update={"output": tmp_path / "mapped"})) == streamed
    assert len(fetched() - before) == 8, "what the tasks searched by was fetched"
