"""The rerank job: results, errors and resuming."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from diffretriever.collections import Passage, Run, read_run, write_run
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.rerank.run import Candidates, reordered
from diffretriever.schemas.rerank import RerankJob
from diffretriever.schemas.retriever import Bm25Retriever
from tests.locations import local
from tests.rerank.rerank_cases import DEPTH, PASSAGES, QUERIES, RUN, MakeJob, MakeReranker, rerank


def ranked_ids(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda passage_id: (-scores[passage_id], passage_id))


def test_the_best_passages_are_reordered_and_the_rest_follows(make_job: MakeJob, make_reranker: MakeReranker) -> None:
    job = make_job()
    summary = rerank(job)
    assert (summary.queries, summary.resumed, summary.passages) == (3, 0, 7)
    actual, texts = read_run(job.output), {query.id: query.text for query in QUERIES}
    assert list(actual) == list(RUN)
    by_id = {passage.id: passage for passage in PASSAGES}
    for query_id, scores in actual.items():
        before = ranked_ids(RUN[query_id])
        top, rest = before[:DEPTH], before[DEPTH:]
        expected = make_reranker("llada").score(texts[query_id], [by_id[i] for i in top])
        np.testing.assert_allclose([scores[i] for i in top], expected, rtol=1e-5)
        assert ranked_ids(scores) == ranked_ids(dict(zip(top, expected.tolist(), strict=True))) + rest
        lowest = min(scores[i] for i in top)
        assert all(scores[i] < lowest for i in rest)
    assert {line.split()[5] for line in local(job.output).read_text().splitlines()} == {"mine.query-likelihood"}
    assert sorted(file.name for file in local(job.output).parent.iterdir()) == ["new.trec", "new.trec.yaml"]
    record = yaml.safe_load(local(job.output).with_name("new.trec.yaml").read_text())
    assert RerankJob.model_validate(record["job"]) == job
    assert (record["reranker"]["read_offset"], record["dtype"]) == (0, "float32")
    assert ranked_ids(RUN["q2"])[1:3] == ["p2", "p4"], "ties of the old run are cut by id"


def test_equal_scores_are_ranked_by_id() -> None:
    passages = [Passage(i, "", i) for i in ("b", "c", "a")]
    candidates = Candidates(QUERIES[0], passages, ["z", "y"])
    assert reordered(candidates, np.array([-1.0, -0.5, -1.0])) == [
        ("c", -0.5), ("a", -1.0), ("b", -1.0), ("z", -2.0), ("y", -3.0),
    ]  # fmt: skip


def test_missing_texts_are_named_before_anything_is_loaded(
    make_job: MakeJob, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffretriever.rerank.run.QueryLikelihood.load", None)
    write_run(folder / "other.trec", [Run.of({"q1": {"p1": 2.0, "gone": 1.0}, "q9": {"p1": 1.0}})], "x")
    with pytest.raises(ValueError, match=r"other\.trec: 1 of its queries .*split 'test' of .*tiny.* 'q9'"):
        rerank(make_job(run=folder / "other.trec"))
    write_run(folder / "other.trec", [Run.of({"q1": {"p1": 2.0, "gone": 1.0}})], "x")
    with pytest.raises(ValueError, match=r"other\.trec: 1 of the passages .*tiny.* 'gone' of query 'q1'"):
        rerank(make_job(run=folder / "other.trec"))
    with pytest.raises(TypeError, match="not callable"):
        rerank(make_job(run=folder / "other.trec", depth=1))


def test_the_command_takes_texts_from_an_index(
    make_job: MakeJob, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "jobs")
    job = make_job()
    rerank(job)
    index = PassageIndex.create(str(folder / "index"), bm25_manifest(Bm25Retriever()))
    Committer(index).commit({"all": write_block(index.uri, text_table(PASSAGES, "c"))}, [])
    # The index alone has the passages.
    (folder / "tiny" / "corpus.jsonl").write_text("")
    by_index = make_job(index=index.uri, output=folder / "by-index.trec")
    importlib.import_module("rerank").main(by_index)
    assert f"{by_index.output}: 3 queries, 7 passages scored now" in capsys.readouterr().out
    output = by_index.output
    actual, expected = read_run(output), read_run(job.output)
    for query_id, scores in expected.items():
        assert ranked_ids(actual[query_id]) == ranked_ids(scores)
        np.testing.assert_allclose([actual[query_id][i] for i in scores], list(scores.values()), rtol=1e-5)


class Killed(BaseException):
    """Interrupts the job, as a signal does."""


def kill_after(queries: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Interrupt the job after `queries` scored queries; return the growing list of scored queries."""
    score, scored = QueryLikelihood.score, []

    def counted(self: QueryLikelihood, query: str, passages: list[Passage]) -> np.ndarray:
        scored.append(query)
        if len(scored) > queries:
            raise Killed
        return score(self, query, passages)

    monkeypatch.setattr(QueryLikelihood, "score", counted)
    return scored


def test_a_killed_job_resumes(make_job: MakeJob, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_job(output=folder / "whole.trec")
    rerank(whole)
    job, partial = make_job(), folder / "out" / "new.trec.partial"
    with monkeypatch.context() as patched:
        kill_after(1, patched)
        with pytest.raises(Killed):
            rerank(job)
    assert not local(job.output).exists()
    scored = kill_after(3, monkeypatch)
    summary = rerank(job)
    assert (summary.queries, summary.resumed, summary.passages) == (3, 1, 4)
    assert scored == ["honey in winter", "fever"], "each query is scored once"
    assert local(job.output).read_bytes() == local(whole.output).read_bytes()
    assert not partial.exists()


def test_scores_of_another_reranker_are_redone(
    make_job: MakeJob, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        kill_after(2, patched)
        with pytest.raises(Killed):
            rerank(make_job())
    text = (folder / "mine.yaml").read_text()
    (folder / "mine.yaml").write_text(text + "max_query_tokens: 1\n")
    assert rerank(make_job()).resumed == 0
