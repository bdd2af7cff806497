"""MS MARCO's passages under the names of their downloads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from diffretriever.collections import Collection, Passage, Query, Run, open_collection
from diffretriever.evaluation.measures import evaluate, measures_of

FILES = {
    "collection.tsv": "0\tfirst\n1\tsecond\n",
    "queries.train.tsv": "1\tof training\n",
    "qrels.train.tsv": "1\t0\t1\t1\n",
    "queries.dev.small.tsv": "20\tunjudged\n10\twhat\n",
    "qrels.dev.small.tsv": "10\t0\t1\t1\n",
    "queries.dev.tsv": "10\twhat\n11\tand what\n",
    "qrels.dev.tsv": "10\t0\t1\t1\n11\t0\t0\t1\n",
    "queries.eval.small.tsv": "40\twithout judgements\n",
    "msmarco-test2019-queries.tsv": "19\tgraded\n18\tunjudged\n",
    "2019qrels-pass.txt": "19 Q0 0 1\n19 Q0 1 3\n",
    "msmarco-test2020-queries.tsv": "21\tgraded too\n",
    "2020qrels-pass.txt": "21 0 1 2\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "msmarco"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def check(collection: Collection) -> None:
    assert collection.name == "msmarco"
    assert list(collection.records()) == [Passage("0", "", "first"), Passage("1", "", "second")]
    assert collection.splits() == ["dev", "dev.full", "dl19", "dl20", "train"]
    assert collection.queries("dev") == [Query("10", "what")]
    assert [query.id for query in collection.queries("dev.full")] == ["10", "11"]
    assert collection.queries("dl19") == [Query("19", "graded")]
    assert collection.qrels("dl19") == {"19": {"0": 1, "1": 3}}
    assert collection.qrels("dl20") == {"21": {"1": 2}}
    assert collection.qrels("train") == {"1": {"1": 1}}


def test_downloaded_files_are_opened(folder: Path) -> None:
    check(open_collection(str(folder)))
    for path in [*folder.iterdir()]:
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    check(open_collection(str(folder)))


@pytest.mark.parametrize(
    ("missing", "split", "message"),
    [
        (["msmarco-test2019-queries.tsv"], "dl19", r"msmarco lacks msmarco-test2019-queries\.tsv \(or \.gz\)"),
        (["2020qrels-pass.txt"], "dl20", r"lacks 2020qrels-pass\.txt .* Splits: dev, dev\.full, dl19, train"),
        ([name for name in FILES if "dev" in name], "dev", r"queries\.dev\.small\.tsv and qrels\.dev\.small\.tsv"),
        ([], "dl21", r"has no split 'dl21'\. Splits: dev"),
    ],
)
def test_missing_files_of_a_split_are_named(folder: Path, missing: list[str], split: str, message: str) -> None:
    for name in missing:
        (folder / name).unlink()
    collection = open_collection(str(folder))
    with pytest.raises(ValueError, match=message):
        collection.queries(split)


def test_a_packed_archive_is_named(folder: Path) -> None:
    (folder / "collection.tsv").rename(folder / "collectionandqueries.tar.gz")
    with pytest.raises(
        ValueError, match=r"no collection\.tsv .* but collectionandqueries\.tar\.gz is: unpack it .*tar -xzf"
    ):
        open_collection(str(folder))


def test_grade_1_of_trec_is_not_relevant() -> None:
    run = Run.of({"19": {"0": 2.0, "1": 1.0}})
    found = evaluate(run, {"19": {"0": 1, "1": 3}}, measures_of("msmarco", "dl19")).mean
    assert found["MRR(rel=2)@10"] == 0.5
    assert found["Recall(rel=2)@100"] == 1.0
