"""What happens to a rerank job that is killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.collections import Passage
from diffretriever.rerank.likelihood import QueryLikelihood
from tests.places import local
from tests.rerank.rerank_cases import DEPTH, MakeJob, rerank


class Killed(BaseException):
    """Stands for a signal."""


def kill_after(queries: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `queries` queries be scored, then die; returns the list of queries asked for, which grows."""
    score, asked = QueryLikelihood.score, []

    def counted(self: QueryLikelihood, query: str, passages: list[Passage]) -> np.ndarray:
        asked.append(query)
        if len(asked) > queries:
            raise Killed
        return score(self, query, passages)

    monkeypatch.setattr(QueryLikelihood, "score", counted)
    return asked


def test_a_killed_job_goes_on_where_it_was(make_job: MakeJob, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_job(output=folder / "whole.trec")
    rerank(whole)
    job, partial = make_job(), folder / "out" / "new.trec.partial"
    with monkeypatch.context() as patched:
        kill_after(1, patched)
        with pytest.raises(Killed):
            rerank(job)
    assert not local(job.output).exists()
    (partial / ".0123456789abcdef.tmp").write_text("[0.1, cut sho")
    with monkeypatch.context() as patched:
        kill_after(1, patched)
        with pytest.raises(Killed):
            rerank(job)
    asked = kill_after(1, monkeypatch)
    summary = rerank(job)
    assert (summary.queries, summary.resumed, summary.passages) == (3, 2, 1)
    assert asked == ["fever"], "each query is scored once"
    assert local(job.output).read_bytes() == local(whole.output).read_bytes()
    assert not partial.exists()


@pytest.mark.parametrize("change", ["depth", "reranker", "query"])
def test_scores_of_another_job_are_not_taken_over(
    change: str, make_job: MakeJob, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        kill_after(2, patched)
        with pytest.raises(Killed):
            rerank(make_job())
    if change == "reranker":
        text = (folder / "mine.yaml").read_text()
        (folder / "mine.yaml").write_text(text + "max_query_tokens: 1\n")
    if change == "query":
        file = folder / "tiny" / "queries.jsonl"
        file.write_text(file.read_text().replace("copper", "honey").replace("winter", "summer"))
    assert rerank(make_job(depth=2 if change == "depth" else DEPTH)).resumed == 0
