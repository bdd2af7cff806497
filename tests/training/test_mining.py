"""Mined negatives equal a slow reference, contain no positive, and resume."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.collections.records import Passage
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.pipelines import mining as mining_parts
from diffretriever.pipelines.mining import mine_negatives
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob
from diffretriever.search import open_searcher
from diffretriever.search.bm25 import Bm25Search
from diffretriever.training.data.examples import Example
from diffretriever.training.data.sources import open_source
from tests.locations import local
from tests.training.example_cases import examples, good, passage, write_beir

MADE = examples(30)
DEPTH = 25
ALL = [passage(number) for number in range(100)]
# What no query may get: a positive's text under another id, its own words, and a passage with its id.
TWIN = Passage("twin", "another title", MADE[0].positives[0].text.upper())
ECHO = Passage("echo", "", MADE[1].query.title())
SELF = Passage("q2", "", f"{MADE[2].query} {MADE[2].query} slab")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """An index of two fragments with a deleted passage."""
    made = PassageIndex.create(str(tmp_path_factory.mktemp("bm25") / "index"), bm25_manifest(Bm25Retriever()))
    committer = Committer(made)
    committer.commit({"one": write_block(made.uri, text_table([*ALL[:50], Passage("x", "", "slab")], "c"))}, [])
    committer.commit({"two": write_block(made.uri, text_table([*ALL[50:], TWIN, ECHO, SELF], "c"))}, [])
    made.delete(["x"])
    return made


@pytest.fixture
def job(index: PassageIndex, tmp_path: Path) -> MineNegativesJob:
    source = write_beir(tmp_path / "beir", MADE)
    output = tmp_path / "mined.jsonl.gz"
    return MineNegativesJob(index=index.uri, source=str(source), output=output, depth=DEPTH, negatives=6)


def reference(job: MineNegativesJob, example: Example) -> list[tuple[str, float]]:
    (hits,) = open_searcher(job.index).search([example.query], k=job.depth)["sparse"]
    texts = {p.id: " ".join(p.text.lower().split()) for p in (*ALL, TWIN, ECHO, SELF)}
    own = {texts[p.id] for p in example.positives}
    positive_scores = [score for i, score in hits if texts[i] in own]
    others: list[tuple[str, float]] = []
    for i, score in hits:
        said = own | {example.query.lower()} | {texts[other] for other, _ in others}
        if texts[i] not in said and i != example.query_id:
            others.append((i, score))
    if job.max_share is not None:
        limit = job.max_share * max(positive_scores, default=-1.0)
        others = [(i, score) for i, score in others if score <= limit]
    return others[: job.negatives]


@pytest.mark.parametrize(
    "changes",
    [{"max_share": 0.9}, {"negatives": 20, "depth": 20}],
)
def test_negatives_are_those_of_the_reference(changes: dict[str, float], job: MineNegativesJob) -> None:
    job = MineNegativesJob.model_validate(job.model_dump() | changes)
    with patch.dict(mining_parts._QUERIES_PER_PART, {"bm25": 7}):
        made = mine_negatives(job)
    actual = good(open_source(str(job.output), "train").records())
    assert [(e.query_id, e.query, e.positives) for e in actual] == [(e.query_id, e.query, e.positives) for e in MADE]
    expected = [reference(job, example) for example in MADE]
    by_id = {p.id: p for p in (*ALL, TWIN, ECHO, SELF)}
    assert [e.negatives for e in actual] == [tuple(by_id[i] for i, _ in hits) for hits in expected]
    lines = gzip.decompress(local(job.output).read_bytes()).splitlines()
    assert [[p["score"] for p in json.loads(line)["negative_passages"]] for line in lines] == [
        [score for _, score in hits] for hits in expected
    ]
    assert made.queries == 30
    assert made.negatives == sum(map(len, expected))
    assert made.incomplete == sum(len(hits) < job.negatives for hits in expected)
    assert not list(local(job.output).parent.glob("*.parts"))
    about = MinedNegatives.model_validate_json(local(job.output).with_name("mined.jsonl.gz.json").read_text("utf-8"))
    assert about == made
    assert (made.settings["mode"], made.settings["depth"]) == ("sparse", job.depth)


def test_the_rankings_contain_the_false_negatives(job: MineNegativesJob) -> None:
    """Otherwise the comparison with the reference would not test them."""
    rankings = open_searcher(job.index).search([MADE[n].query for n in range(3)], k=DEPTH)["sparse"]
    for trap, hits in zip(("twin", "echo", "q2"), rankings, strict=True):
        assert trap in dict(hits)
    assert sum(any(p.id in dict(hits) for p in MADE[n].positives) for n, hits in enumerate(rankings)) > 0


def test_a_killed_job_resumes(job: MineNegativesJob) -> None:
    whole = mine_negatives(job.model_copy(update={"output": job.output.with_name("whole.jsonl.gz")}))
    search, searched = Bm25Search.search, list[int]()

    def counting(self: Bm25Search, queries: list[str], k: int) -> object:
        searched.append(len(queries))
        return search(self, queries, k)

    def dying(self: Bm25Search, queries: list[str], k: int) -> object:
        if sum(searched) >= 12:
            raise KeyboardInterrupt
        return counting(self, queries, k)

    with patch.dict(mining_parts._QUERIES_PER_PART, {"bm25": 4}), patch("os.cpu_count", return_value=1):
        with patch.object(Bm25Search, "search", dying), pytest.raises(KeyboardInterrupt):
            mine_negatives(job)
        assert not local(job.output).exists()
        with pytest.raises(ValueError, match=r"(?s)an attempt at another job.*settings\.negatives: 6 != 5"):
            mine_negatives(job.model_copy(update={"negatives": 5}))
        searched.clear()
        with patch.object(Bm25Search, "search", counting):
            again = mine_negatives(job)
    assert sum(searched) == 30 - 12, "three parts of four were done"
    assert (again.queries, again.negatives) == (whole.queries, whole.negatives)
    assert gzip.decompress(local(job.output).read_bytes()) == gzip.decompress(
        local(job.output).with_name("whole.jsonl.gz").read_bytes()
    )
    # The same command once more finds all done; another one is refused.
    assert mine_negatives(job) == again
    with pytest.raises(ValueError, match="was mined otherwise"):
        mine_negatives(job.model_copy(update={"negatives": 5}))


def test_an_existing_file_is_not_overwritten(job: MineNegativesJob) -> None:
    local(job.output).write_text("precious", "utf-8")
    with pytest.raises(ValueError, match="was not mined"):
        mine_negatives(job)
    assert local(job.output).read_text("utf-8") == "precious"


def test_bad_records_stop_or_are_set_aside(job: MineNegativesJob) -> None:
    with (Path(job.source) / "qrels" / "train.tsv").open("a", encoding="utf-8") as qrels:
        qrels.write("q2\tgone\t1\n")
    with pytest.raises(ValueError, match="missing passage"):
        mine_negatives(job)
    assert mine_negatives(job.model_copy(update={"on_bad_input": "quarantine"})).queries == 29
    assert "missing passage" in local(job.output).with_name("mined.jsonl.gz.quarantine.jsonl").read_text("utf-8")


def test_a_depth_or_mode_that_cannot_work_is_refused(job: MineNegativesJob) -> None:
    with pytest.raises(ValueError, match="raise --depth"):
        MineNegativesJob.model_validate(job.model_dump() | {"depth": 5})
    with pytest.raises(ValueError, match="no dense scores"):
        mine_negatives(job.model_copy(update={"mode": "dense"}))
