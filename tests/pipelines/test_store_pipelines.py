"""Jobs on Ray over an index on an object store: files made by tasks, and a batch search that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffretriever.artefacts.artefact import folders_in
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.accelerate import make_on_ray
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.encode import encode_collection
from diffretriever.search.accelerate import accelerate, missing_files
from schemas.accelerate import AccelerateJob
from schemas.encode import EncodeJob
from schemas.search import BatchSearchJob
from tests.cluster.s3 import BUCKET, S3
from tests.pipelines.corpora import WORDS, line, write_corpus

pytestmark = pytest.mark.cluster
INDEX = f"s3://{BUCKET}/index"


@pytest.fixture(scope="module", autouse=True)
def cache(warm: None, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray of its own, whose workers know the endpoint and this cache."""
    import ray

    from diffretriever.pipelines.cluster import connect

    cache = tmp_path_factory.mktemp("cache")
    with s3.reached(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIFFRETRIEVER_CACHE", str(cache))
        ray.shutdown()
        connect("local", num_cpus=2)
        yield cache / "artefacts"
        ray.shutdown()


def runs(job: BatchSearchJob) -> dict[str, str]:
    return {mode: Path(place).read_text("utf-8") for mode, place in search_batch(job).runs.items()}


def test_a_batch_search_by_files_that_tasks_made(checkpoint: Path, tmp_path: Path, cache: Path) -> None:
    encode_collection(
        EncodeJob(
            collection=str(write_corpus(tmp_path / "corpus", [line(i) for i in range(60)])),
            index=INDEX,
            retriever="diffretriever-llada",
            backbone=str(checkpoint),
            encoders=1,
            rows_per_block=16,
            compact=False,
        )
    )
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"_id": f"q{n}", "text": WORDS[n]}) + "\n" for n in range(5)), "utf-8")
    job = BatchSearchJob(index=INDEX, queries=queries, output=tmp_path / "streamed", top_k=30, searchers=1)
    streamed = runs(job)
    assert not cache.exists()

    done = accelerate(AccelerateJob(index=INDEX), lambda index, missing: make_on_ray(index, missing, 2))
    assert {kind: kept.made for kind, kept in done.files.items()} == {"codes": 4, "postings": 4}
    index = PassageIndex.open(INDEX)
    assert missing_files(index) == []
    assert len(folders_in(INDEX, "codes")) == 4
    assert runs(job.model_copy(update={"output": tmp_path / "mapped"})) == streamed
    assert len(list(cache.glob("*-*/"))) == 8, "what the tasks searched by was fetched"
