"""Documents ranked by their chunks, searched and measured: in every mode as by the scores of all chunks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import diffretriever as dr
from diffretriever.schemas.retriever import TextConfig

WORDS = ["roses", "winter", "prune", "bees", "hive", "honey", "tides", "moon", "water", "bread", "oven", "salt"]
DOCUMENTS = {
    f"d{n}": " ".join(
        f"{WORDS[(n * step + step) % 12].title()} and {WORDS[(n + step) % 12]}." for step in range(1 + n * 2)
    )
    for n in range(12)
}
QUERIES = ["prune roses in winter", "bees and honey", "bread of the moon"]
MODES = ["dense", "sparse", "bm25", "hybrid", "dense+0.3bm25"]
EVERYTHING = 500


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "long"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "text": text, "odd": int(name[1:]) % 2 == 1} for name, text in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(QUERIES)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    judged = "".join(f"q{n}\td{document}\t1\n" for n, document in enumerate([11, 9, 7]))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


@pytest.fixture(scope="module")
def index(corpus: Path, folder_of: Callable[[str], Path]) -> dr.Index:
    made = dr.Retriever("diffretriever-llada", backbone=str(folder_of("llada")), device="cpu")
    limits = TextConfig(max_passage_tokens=60)
    retriever = dr.Retriever(made.config.model_copy(update={"text": limits}), device="cpu")
    index = dr.Index.create(corpus.parent / "index", str(corpus), retriever=retriever, chunk=16)
    assert {"d0", "d11#5"} < set(index.search("x", k=EVERYTHING, mode="dense").ids)
    return index


def expected(index: dr.Index, query: str, mode: str, averaged: int, chosen: str | None) -> list[tuple[str, float]]:
    """Score documents by all chunks, of which those that share no term count 0."""
    counts, chunks = defaultdict[str, int](int), defaultdict[str, list[float]](list)
    for hit in index.search(query, k=EVERYTHING, mode="dense", filter=chosen):
        counts[hit.id.partition("#")[0]] += 1
    for hit in index.search(query, k=EVERYTHING, mode=mode, filter=chosen):
        chunks[hit.id.partition("#")[0]].append(hit.score)
    means = {name: sum(scores[:averaged]) / min(averaged, counts[name]) for name, scores in chunks.items()}
    return sorted(means.items(), key=lambda item: (-item[1], item[0]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chosen", [None, "odd"])
def test_documents_score_as_their_chunks_do(index: dr.Index, mode: str, chosen: str | None) -> None:
    firsts = ", ".join(f"'{name}', '{name}#1'" for name in DOCUMENTS)
    only_firsts = f"id IN ({firsts}){' AND odd' if chosen else ''}"
    for documents, averaged, searched in [("max", 1, chosen), ("mean-3", 3, chosen), ("first", 1, only_firsts)]:
        for k in (2, 12):
            together = index.search(QUERIES, k, mode=mode, filter=chosen, documents=documents)
            for query, results in zip(QUERIES, together, strict=True):
                best = expected(index, query, mode, averaged, searched)[:k]
                assert [(hit.id, hit.score) for hit in results] == best, documents


def test_a_document_shows_its_best_chunk(index: dr.Index) -> None:
    first = index.search(QUERIES[0], k=1, mode="bm25")[0]
    (shown,) = index.search(QUERIES[0], k=1, mode="bm25", documents="max")
    assert (shown.id, shown.text, shown.score) == (first.id.partition("#")[0], first.text, first.score)
    assert first.id != shown.id
    with pytest.raises(ValueError, match="unknown score 'mean': use max, first, or mean-3"):
        index.search(QUERIES[0], documents="mean")
    assert index.search([], documents="max") == []


def test_judgements_of_documents_measure_their_chunks(index: dr.Index, corpus: Path) -> None:
    with pytest.raises(ValueError, match=r'--documents max \(in Python documents="max"\)'):
        dr.evaluate(index, str(corpus))
    measured = dr.evaluate(index, str(corpus), modes=["bm25"], measures=["Recall@12"], documents="max")
    assert measured.results["bm25"].mean == {"Recall@12": 1.0}
    conditions = measured.conditions["bm25"]
    assert conditions.coverage is not None
    assert (conditions.coverage.indexed, conditions.coverage.passages, conditions.documents) == (12, 12, "max")
    assert not measured.warnings
    ranked = measured.runs["bm25"].hits[0]
    assert ranked == expected(index, QUERIES[0], "bm25", 1, None)
