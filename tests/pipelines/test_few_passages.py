"""Few passages and queries need no Ray, and every encode job leaves an index that is fast to search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from diffretriever.collections import open_collection, read_run
from diffretriever.evaluation.conditions import coverage_of, warnings_of
from diffretriever.index.derived import folders_in
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines import accelerate, batch_search, executor, index_writer, ray_executor
from diffretriever.pipelines.batch_search import search_batch
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.executor import few_queries, runs_here
from diffretriever.pipelines.mining import mine_negatives
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.evaluate import Conditions, Overlap
from diffretriever.schemas.retriever import LibraryRetriever
from diffretriever.schemas.search import BatchSearchJob, SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.schemas.training_data import MineNegativesJob
from diffretriever.search import accelerate as files
from diffretriever.search import open_searcher
from diffretriever.search.accelerate import missing_files
from diffretriever.search.bm25 import bm25_folder
from diffretriever.search.inspection import inspect
from diffretriever.studies.budgets.pruned_index import write_pruned
from diffretriever.vectors.fusion import FUSION_DEPTH
from tests.index.compressed_cases import compressed
from tests.pipelines.corpora import JobMaker, line, write_corpus


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray is at hand, and none may be started."""
    monkeypatch.setattr("diffretriever.pipelines.cluster.is_ray_running", lambda: False)
    monkeypatch.delattr(ray_executor, "ray_session")


@pytest.fixture
def job(tmp_path: Path, make_job: JobMaker) -> Any:
    """A job of 14 passages in one block, without a word on where encoders run."""
    corpus = write_corpus(tmp_path / "corpus", [line(i) for i in range(14)])
    return make_job(corpus, encoders=None)


def test_metadata_reaches_derived_indexes_and_filters(job: Any, tmp_path: Path) -> None:
    """To the table, past bad records, and with what is made of the table: codes, fewer slots."""
    lines = [json.dumps({**json.loads(line(i)), "metadata": {"n": i, "even": i % 2 == 0}}) for i in range(14)]
    lines[7] = json.dumps({**json.loads(line(7)), "n": "seven"})
    corpus = write_corpus(tmp_path / "corpus", lines)
    with pytest.raises(ValueError, match=r"corpus.jsonl:8: wrong type: 'n' is string, and int64"):
        encode_collection(job)
    summary = encode_collection(job.model_copy(update={"on_bad_input": "quarantine"}))
    assert (summary.encoded, summary.bad_reasons) == (13, {"wrong type": 1})
    made = PassageIndex.open(job.index)
    assert made.manifest.metadata == {"n": "int64", "even": "bool"}
    vectors = sum(len(batch.column("reps").flatten()) for batch in made.batches(["reps"], 9))
    pruned = write_pruned(made, np.ones(vectors, bool), str(tmp_path / "pruned"))
    packed = compressed(made.clone(str(tmp_path / "packed")), "product4")
    for each in (made, pruned, packed):
        verification = inspect(each, check=True).verification
        assert verification is not None
        assert verification.problems == []
        found = open_searcher(each.uri, SearchOptions(index=each.uri, backbone=job.backbone)).search(
            ["slot"], k=9, modes=["dense"], filter="even AND n > 5"
        )
        assert sorted(i for i, _ in found["dense"][0]) == ["p10", "p12", "p6", "p8"]
    lines[3] = json.dumps({**json.loads(line(3)), "metadata": {"n": 4, "even": False}})
    lines[7] = json.dumps({**json.loads(line(7)), "n": 7})
    write_corpus(corpus, lines)
    synced = encode_collection(job.model_copy(update={"sync": True, "on_existing": "replace"}))
    assert (synced.encoded, synced.already_there, synced.replaced) == (2, 12, 1)


def test_a_sync_deletes_passages_that_left_the_collection(job: Any, tmp_path: Path) -> None:
    encode_collection(job)
    encode_collection(job.model_copy(update={"collection": str(write_corpus(tmp_path / "other", [line(99)]))}))
    write_corpus(tmp_path / "corpus", [line(i) for i in range(3, 14)])
    assert encode_collection(job).deleted == 0, "only where the job says so"
    synced = encode_collection(job.model_copy(update={"sync": True}))
    assert (synced.encoded, synced.already_there, synced.deleted, synced.rows) == (0, 11, 3, 12)
    assert "p99" in PassageIndex.open(job.index).passages(["p0", "p99"])
    with pytest.raises(ValueError, match="--sync needs --on-bad-input error"):
        EncodeJob(collection="c", index="i", sync=True, on_bad_input="quarantine")


def test_a_sync_rejects_another_collection_of_the_same_name(job: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "corpus", tmp_path / "two" / "corpus"
    first = job.model_copy(update={"sync": True})
    second = job.model_copy(update={"sync": True, "collection": str(write_corpus(two, [line(99)]))})
    encode_collection(first)
    with pytest.raises(ValueError, match=rf"{one}/corpus.jsonl from .*, because {two}/corpus.jsonl .*rename"):
        encode_collection(second)
    assert encode_collection(second.model_copy(update={"sync": False})).rows == 15
    for each in (first, second):
        with pytest.raises(ValueError, match=r"has moved to .*, remove .*collections\.json"):
            encode_collection(each)
    (Path(job.index) / "collections.json").unlink()
    assert encode_collection(second).rows == 1, "as the message says of a collection that has moved"
    assert encode_collection(second).deleted == 0


def test_an_index_is_encoded_under_the_protocol(job: Any) -> None:
    encode_collection(job.model_copy(update={"protocol": "authors"}))
    retriever: Any = PassageIndex.open(job.index).manifest.retriever
    assert (retriever.prompt.colon, retriever.content_words.subwords) == (True, True)


def test_an_interrupted_job_leaves_an_unfinished_collection(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index_writer, "compact_index", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            encode_collection(job)
    assert inspect(PassageIndex.open(job.index), check=False).unfinished == ("corpus",)
    coverage = coverage_of(PassageIndex.open(job.index), open_collection(job.collection), {})
    conditions = Conditions(coverage=coverage, overlap=Overlap(queries=1, judged=1, relevant=1))
    assert "the encode job of corpus has not finished" in warnings_of({"index": conditions}, 1)[0]
    assert encode_collection(job).already_there == 14
    assert inspect(PassageIndex.open(job.index), check=False).unfinished == ()


def test_an_index_has_the_instruction_of_its_collection(job: Any, tmp_path: Path) -> None:
    """A published model's; a collection with another one is not added to it."""
    pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")
    from tests.encoders.library_cases import published

    own = {"arguana": {"query_instruction": "refute", "passage_instruction": "be refuted"}}
    retriever = {
        "method": "library",
        "backbone": {"source": str(published("bert", tmp_path / "model", "mean"))},
        "prompt_form": "{instruction}: ",
        "on_collections": own,
    }
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(retriever))
    of_it = {"retriever": str(tmp_path / "model.yaml"), "backbone": None}
    corpora = {name: str(write_corpus(tmp_path / name, [line(i) for i in range(3)])) for name in ("arguana", "nq")}
    encode_collection(job.model_copy(update={**of_it, "collection": corpora["arguana"]}))
    made = PassageIndex.open(job.index).manifest.retriever
    assert isinstance(made, LibraryRetriever)
    assert (made.query_prompt, made.passage_prompt, made.on_collections) == ("refute: ", "be refuted: ", {})
    with pytest.raises(
        ValueError, match=r"another retriever.*\n.*passage_prompt: be refuted:  != None\n.*query_prompt"
    ):
        encode_collection(job.model_copy(update={**of_it, "collection": corpora["nq"]}))


def test_few_queries_are_searched_and_mined_without_ray(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three queries at a time, their own documents left out; the same runs as one search gives."""
    encode_collection(job)
    texts = {f"p{i}": json.loads(line(i))["text"] for i in range(7)}
    corpus = tmp_path / "corpus"
    (corpus / "queries.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "{text}"}}\n' for i, text in texts.items()))
    (corpus / "qrels").mkdir(exist_ok=True)
    judged = "".join(f"p{i}\tp{i + 1}\t1\n" for i in range(7))
    (corpus / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    shared = {"index": job.index, "backbone": job.backbone}
    modes = ("dense", "sparse", "hybrid", "dense+bm25")
    asked = BatchSearchJob(**shared, collection=str(corpus), split="train", output=tmp_path / "runs", modes=modes)
    monkeypatch.setattr(batch_search, "_HITS_AT_ONCE", 3 * FUSION_DEPTH)
    summary = search_batch(asked.model_copy(update={"exclude_self": True, "top_k": 5}))
    assert (summary.queries, summary.passages, summary.parts) == (7, 14, 3)
    searcher = open_searcher(job.index, SearchOptions(**shared))
    rounds = [list(texts.values())[start : start + 3] for start in (0, 3, 6)]
    found = [searcher.search(each, k=6, modes=modes) for each in rounds]
    for mode in modes:
        ranked = [hits for each in found for hits in each[mode]]
        kept = {q: dict([hit for hit in hits if hit[0] != q][:5]) for q, hits in zip(texts, ranked, strict=True)}
        assert read_run(tmp_path / "runs" / f"{mode}.trec") == {q: hits for q, hits in kept.items() if hits}
    negatives = mine_negatives(
        MineNegativesJob(**shared, source=str(corpus), output=tmp_path / "mined.jsonl", mode="dense", negatives=4)
    )
    assert (negatives.queries, negatives.negatives, negatives.incomplete) == (7, 28, 0)
    lines = map(json.loads, (tmp_path / "mined.jsonl").read_text().splitlines())
    for record, hits in zip(lines, searcher.search([*texts.values()], k=14, modes=["dense"])["dense"], strict=True):
        (positive,), query = record["positive_passages"], record["query_id"]
        expected = [score for passage, score in hits if passage not in (positive["docid"], query)][:4]
        # A text's vectors differ in the last bits by the batch that it is encoded in.
        assert [hit["score"] for hit in record["negative_passages"]] == pytest.approx(expected, abs=1e-5)


def test_a_ray_option_or_many_queries_start_ray(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_collection(job)
    index = PassageIndex.open(job.index)
    asked = RayConfig()
    assert runs_here(asked, small=few_queries(index, 256))
    assert not runs_here(asked, small=few_queries(index, 257))
    for value in ({"encoders": 1}, {"autoscale": True}):
        assert not runs_here(asked.model_copy(update=value), small=True)
    monkeypatch.setattr(executor, "_FEW_PASSAGES", 13)
    assert not few_queries(index, 1)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_an_empty_collection_is_rejected(name: str, job: Any, tmp_path: Path) -> None:
    """As a download that did not get far leaves it."""
    (tmp_path / "cut").mkdir()
    file = tmp_path / "cut" / name
    file.touch()
    with pytest.raises(ValueError, match=f"collection 'cut' is empty: is {file} whole|{file}: damaged gzip data"):
        encode_collection(job.model_copy(update={"collection": str(file.parent)}))
    assert not PassageIndex.exists(job.index)


def test_bm25_is_encoded_without_ray(job: Any) -> None:
    summary = encode_collection(job.model_copy(update={"retriever": "bm25", "backbone": None}))
    assert (summary.encoded, summary.device_share, summary.peak_memory) == (14, None, None)
    assert encode_collection(job.model_copy(update={"retriever": "bm25", "backbone": None})).already_there == 14


@pytest.mark.parametrize("changes", [{"rows_per_block": 13}, {"encoders": 1}])
def test_two_blocks_or_a_ray_option_start_ray(job: Any, changes: dict[str, object]) -> None:
    with pytest.raises(NameError, match="ray_session"):
        encode_collection(job.model_copy(update=changes))


def test_an_encode_job_writes_the_derived_files(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate, "_PAYS_BYTES", 1)
    encode_collection(job.model_copy(update={"accelerate": False}))
    assert missing_files(PassageIndex.open(job.index))
    assert bm25_folder(PassageIndex.open(job.index)).size() is None
    encode_collection(job)
    assert not missing_files(PassageIndex.open(job.index))
    assert bm25_folder(PassageIndex.open(job.index)).size()
    monkeypatch.undo()
    monkeypatch.setattr("diffretriever.pipelines.cluster.is_ray_running", lambda: False)
    more = write_corpus(tmp_path / "more", [line(i) for i in range(14, 20)])
    encode_collection(job.model_copy(update={"collection": str(more)}))
    index = PassageIndex.open(job.index)
    assert not missing_files(index)
    assert folders_in(index.uri, "bm25") == [f"version-{index.version}"], "that of the version before is gone"


def test_a_job_killed_while_accelerating_resumes(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate, "_PAYS_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "build_fragment_postings", _killed)
        with pytest.raises(KeyboardInterrupt):
            encode_collection(job)
    index = PassageIndex.open(job.index)
    assert [each.kinds for each in missing_files(index)] == [("postings",)]
    assert encode_collection(job).already_there == 14
    assert not missing_files(index)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
