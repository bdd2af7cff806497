"""An index in three lines of Python: made, searched, changed, taken back; the same as the jobs make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import diffretriever as dr
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.encode import EncodeJob
from diffretriever.vectors.representations import Representations
from tests.pipelines.corpora import line, write_corpus

NOTES = ["prune roses in winter", "the server has no memory", "tomatoes like the sun"]


@pytest.fixture(scope="module")
def retriever(folder_of: Callable[[str], Path]) -> dr.Retriever:
    return dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), device="cpu")


@pytest.fixture
def index(retriever: dr.Retriever, tmp_path: Path) -> dr.Index:
    return dr.Index.create(tmp_path / "notes", NOTES, retriever=retriever)


def test_three_lines(index: dr.Index) -> None:
    results = index.search("prune roses", k=2)
    assert isinstance(results, dr.Results)
    assert [hit.rank for hit in results] == [1, 2]
    assert results.mode == "hybrid"
    assert results[0].text in NOTES
    assert results[0].collection == "documents"
    assert list(results.to_pandas().columns) == ["rank", "id", "score", "title", "text", "collection"]
    assert results.to_pandas()["id"].tolist() == results.ids
    assert results[0].text in repr(results)
    assert results[0].text in results._repr_html_()
    assert repr(index).endswith("3 passages, diffretriever-llada, version 2)")


def test_a_text_is_one_query(index: dr.Index) -> None:
    several = index.search(["prune roses", "sun"], k=1, mode="dense")
    assert [each.query for each in several] == ["prune roses", "sun"]
    assert several[0].hits == index.search("prune roses", k=1, mode="dense").hits
    assert len(index.search("sun", k=9, mode="bm25")) == 1
    with pytest.raises(ValueError, match="text number 1 is a int"):
        index.search(["sun", 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="k must be at least 1"):
        index.search("sun", k=0)
    with pytest.raises(ValueError, match=r"unknown scoring mode 'sparce'. Did you mean 'sparse'"):
        index.search("sun", mode="sparce")


def test_changes(index: dr.Index) -> None:
    before = index.version
    assert index.add([{"id": "a", "text": "dig in autumn"}]).encoded == 1
    assert index.add([{"id": "a", "text": "dig in autumn"}]).already_there == 1
    with pytest.raises(ValueError, match="with another text"):
        index.add([{"id": "a", "text": "dig in spring"}])
    assert index.add([{"id": "a", "text": "dig in spring"}], on_existing="replace").replaced == 1
    assert index["a"]["text"] == "dig in spring"
    assert "a" in index.search("dig", k=4).ids
    assert index.delete("a") == 1
    assert "a" not in index
    assert len(index) == 3
    old = index.at(before)
    assert len(old) == 3
    assert old.search("dig", k=1).hits == index.search("dig", k=1).hits
    with pytest.raises(ValueError, match="read-only: open it without a version"):
        old.delete("a")
    assert [change.change for change in index.versions()][:2] == ["created", "appended"]
    index.delete(index.search("dig", k=1).ids)
    assert len(index) == 2
    index.restore(before)
    assert len(index) == 3
    assert index.search("dig", k=1).hits == old.search("dig", k=1).hits
    assert index.versions()[-1].change == "restored"
    with pytest.raises(ValueError, match="has no version 99"):
        index.restore(99)


def test_sync(index: dr.Index) -> None:
    index.add(["of another collection"], name="others")
    summary = index.sync([NOTES[0], "new"])
    assert (summary.encoded, summary.already_there, summary.deleted) == (1, 1, 2)
    texts = {hit.text for hit in index.search("x", k=9)}
    assert texts == {NOTES[0], "new", "of another collection"}
    assert index.sync([NOTES[0], "new"]).deleted == 0


def test_explanations(index: dr.Index) -> None:
    best = index.search("prune roses", k=1, mode="dense")[0]
    explained = index.explain("prune roses", best.id)
    products = [match.product for match in explained.slots]
    assert sum(products) / len(products) == pytest.approx(best.score, abs=1e-5)
    assert [len(reading) for reading in explained.query_readings] == [8] * len(explained.slots)
    assert len(explained.passage_readings) == len(explained.passage_slots)
    fewer = index.explain("prune roses", best.id, 2, words=0)
    assert len(fewer.slots) == 2
    assert not fewer.query_readings
    with pytest.raises(ValueError, match="has no passage 'nobody'"):
        index.explain("prune roses", "nobody")
    with pytest.raises(ValueError, match="words must be at least 0, and is -1"):
        index.explain("prune roses", best.id, words=-1)


def test_the_same_as_a_job(retriever: dr.Retriever, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [line(i) for i in range(20)])
    made = dr.Index.create(tmp_path / "here", corpus, retriever=retriever)
    job = EncodeJob(collection=str(corpus), index=str(tmp_path / "job"), retriever="diffretriever-llada")
    encode_collection(job, retriever=retriever.config)
    ours, theirs = (
        {row["id"]: row for row in PassageIndex.open(str(tmp_path / name)).dataset.to_table().to_pylist()}
        for name in ("here", "job")
    )
    assert ours == theirs
    measured = dr.evaluate(made, str(corpus), measures=["nDCG@10"], modes=["dense"])
    assert measured.results["dense"].mean.keys() == {"nDCG@10"}
    assert "nDCG@10" in repr(measured)
    assert measured.to_pandas().shape == (1, 1)
    assert "corpus, test" in measured._repr_html_()
    words = dr.evaluate(made, str(corpus), modes=["bm25"], measures=["nDCG@10"])
    compared = dr.compare({"ours": measured, "words": words})
    assert [line.split()[:2] for line in repr(compared).splitlines()[2:4]] == [["a", "ours"], ["b", "words"]]
    assert compared.to_pandas().shape == (2, 1)
    assert "<td" in compared._repr_html_()
    fused = dr.compare({"ours": measured, "words": words}, fusions=["min-max"]).report
    assert fused.measures["fused by min-max"].keys() == {"min-max"}
    assert fused.measures["ours"] == compared.report.measures["ours"]
    with pytest.raises(ValueError, match="different measures"):
        dr.compare({"ours": measured, "words": dr.evaluate(made, str(corpus), modes=["bm25"])})


def test_a_wrong_index_is_no_zero(index: dr.Index, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [line(0)])
    with pytest.raises(ValueError, match="holds none of the passages that corpus judges relevant"):
        dr.evaluate(index, str(corpus))


def test_bad_documents_leave_nothing(retriever: dr.Retriever, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="documents:2: empty passage"):
        dr.Index.create(tmp_path / "i", ["fine", ""], retriever=retriever)
    assert not PassageIndex.exists(str(tmp_path / "i"))
    with pytest.raises(ValueError, match=r"no collection 'prune roses'.* To pass a text, put it in a list: \[text\]"):
        dr.Index.create(tmp_path / "i", "prune roses", retriever=retriever)
    with pytest.raises(ValueError, match="no index at"):
        dr.Index(tmp_path / "i")


def test_an_index_keeps_the_precision_that_it_was_begun_in(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may compute in another one."""
    dtypes = set()
    for has_bfloat16 in (True, False):
        monkeypatch.setattr("diffretriever.backbones.device.computes_bfloat16", lambda has=has_bfloat16: has)
        retriever = dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), device="cpu")
        index = dr.Index.create(tmp_path / "i", [f"text of {has_bfloat16}"], retriever=retriever)
        dtypes.add(index.retriever.encoder.facts.dtype)
        assert len(index.search("text", k=2)) == len(index)
    assert dtypes == {"bfloat16"}


def test_a_retriever(retriever: dr.Retriever) -> None:
    alone, listed = retriever.encode_queries("prune roses"), retriever.encode_queries(["prune roses"])
    assert isinstance(alone, Representations)
    assert len(alone) == 1
    assert (alone.vectors_MH == listed.vectors_MH).all()
    assert len(retriever.encode_queries("prune roses", budget=2).vectors_MH) == 2
    assert len(retriever.encode_passages("a text")) == 1
    assert repr(alone).startswith("Representations(1 text, ")
    with pytest.raises(ValueError, match="2 texts but 1 titles"):
        retriever.encode_passages(["a", "b"], "title")
    assert repr(dr.Retriever("minilm-pooled")) == "Retriever('minilm-pooled', modes=dense)"
    with pytest.raises(ValueError, match="has no slots"):
        dr.Retriever("minilm-pooled").encode_queries("x", budget=2)
    assert str(dr.Retriever("diffretriever-minilm", budget="q2p4").config.budget) == "q2p4"  # type: ignore[union-attr]


def test_sync_is_of_the_only_collection(tmp_path: Path) -> None:
    """An index of a file is synced with a list, though the list has another name of its own."""
    file = tmp_path / "notes.csv"
    file.write_text("id,text\na,one note\nb,another note\n", "utf-8")
    index = dr.Index.create(tmp_path / "index", str(file), retriever="bm25")
    assert index.collections == ["notes"]
    assert index.sync([{"id": "a", "text": "one note"}]).deleted == 1
    index.add([{"id": "c", "text": "a third"}], name="others")
    with pytest.raises(ValueError, match="several collections: choose one, such as name='notes'"):
        index.sync([{"id": "a", "text": "one note"}])
    assert len(index) == 2
