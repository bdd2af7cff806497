"""An index in PyTerrier's pipelines, checked by PyTerrier's own validation, inspection and experiment; no Java."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("pyterrier", reason="the extra `pyterrier` is not installed")

import pyterrier as pt

import diffretriever as dr
from diffretriever.integrations.pyterrier import PyTerrierRetriever

# PyTerrier's own use of what pandas deprecates.
pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore:The inplace keyword")]

TEXTS = ["honey bees store water in winter", "a river of copper", "summer water", "winter"]
TOPICS = pd.DataFrame(
    [["q1", "honey in winter", "en"], ["q2", "copper river", "en"]], columns=["qid", "query", "qlang"]
)
QRELS = pd.DataFrame([["q1", "a", 1], ["q2", "b", 1]], columns=["qid", "docno", "label"])


@pytest.fixture(scope="module")
def index(folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dr.Index:
    retriever = dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), budget="q2p3", device="cpu")
    documents = [{"id": name, "text": text} for name, text in zip("abcd", TEXTS, strict=True)]
    return dr.Index.create(tmp_path_factory.mktemp("pt") / "index", documents, retriever=retriever)


def test_queries_become_ranked_passages(index: dr.Index) -> None:
    found = PyTerrierRetriever(index, mode="dense", k=3).transform(TOPICS)
    assert list(found.columns) == ["qid", "query", "qlang", "docno", "score", "rank"]
    pt.validate.result_frame(found, extra_columns=["score", "rank"])
    assert found["rank"].tolist() == [0, 1, 2] * 2
    for (qid, query), rows in found.groupby(["qid", "query"]):
        expected = index.search(query, k=3, mode="dense")
        assert rows["docno"].tolist() == expected.ids, qid
        assert rows["score"].tolist() == pytest.approx([hit.score for hit in expected])


def test_an_index_is_named_by_its_place(index: dr.Index) -> None:
    retriever = PyTerrierRetriever(index.location)
    assert retriever.search("honey")["docno"].tolist() == index.search("honey", k=9).ids
    assert PyTerrierRetriever(index, mode="dense", budget=1).search("honey")["score"].tolist() != (
        PyTerrierRetriever(index, mode="dense", budget=2).search("honey")["score"].tolist()
    )
    with pytest.raises(ValueError, match="k must be at least 1"):
        PyTerrierRetriever(index, k=0)
    with pytest.raises(ValueError, match="no sparce scores"):
        PyTerrierRetriever(index, mode="sparce").search("honey")


def test_operators_of_pyterrier(index: dr.Index) -> None:
    dense: Any = PyTerrierRetriever(index, mode="dense")
    words: Any = PyTerrierRetriever(index, mode="bm25")
    summed = (0.5 * dense + 2 * words)(TOPICS)
    one = {row.docno: row.score for row in dense(TOPICS).itertuples() if row.qid == "q1"}
    other = {row.docno: row.score for row in words(TOPICS).itertuples() if row.qid == "q1"}
    for row in summed[summed["qid"] == "q1"].itertuples():
        assert row.score == pytest.approx(0.5 * one[row.docno] + 2 * other.get(row.docno, 0))
    first = (dense % 1)(TOPICS)
    assert first["docno"].tolist() == [index.search(query, k=1, mode="dense").ids[0] for query in TOPICS["query"]]
    assert (dense % 1).compile().k == 1
    assert set((dense | words)(TOPICS)["docno"]) == set("abcd")
    reranked = dense >> pt.apply.doc_score(lambda row: -ord(row["docno"]))
    assert reranked(TOPICS).sort_values(["qid", "rank"])["docno"].tolist() == [*"abcd"] * 2
    features = (dense % 2) >> (pt.transformer.IdentityTransformer() ** pt.apply.doc_score(lambda row: 1.0))
    assert features(TOPICS)["features"].map(len).tolist() == [2] * 4


def test_pyterrier_can_inspect_it(index: dr.Index) -> None:
    retriever = PyTerrierRetriever(index, mode="dense")
    assert pt.inspect.transformer_inputs(retriever) == [["qid", "query"]]
    assert pt.inspect.transformer_outputs(retriever, ["qid", "query"]) == ["qid", "query", "docno", "score", "rank"]
    assert {each.name for each in pt.inspect.transformer_attributes(retriever)} == {"index", "mode", "k", "budget"}
    assert pt.inspect.transformer_apply_attributes(retriever, k=2).k == 2
    with pytest.raises(pt.validate.InputValidationError, match="PyTerrierRetriever"):
        retriever(TOPICS[["qid"]])
    with pytest.raises(pt.validate.InputValidationError):
        retriever(retriever(TOPICS))
