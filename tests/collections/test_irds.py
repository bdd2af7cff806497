"""Collections of `ir_datasets`, which a small stand-in replaces."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from diffretriever.collections import Passage, Query, open_collection
from diffretriever.collections.irds import is_converted
from diffretriever.core.files import cache_dir

Titled = namedtuple("Titled", "doc_id text title")
Question = namedtuple("Question", "query_id text")
Judgement = namedtuple("Judgement", "query_id doc_id relevance")


class Dataset:
    """Return value of `ir_datasets.load`."""

    def __init__(self, docs: list[Any], queries: list[Any] | None = None, qrels: list[Judgement] | None = None) -> None:
        self.docs, self.read = docs, 0
        self.has_docs, self.has_queries, self.has_qrels = (partial(bool, each) for each in (docs, queries, qrels))
        self.queries_iter, self.qrels_iter = partial(iter, queries or []), partial(iter, qrels or [])

    def docs_lang(self) -> str | None:
        return "zh" if self.docs is SCIFACT else None

    def docs_iter(self) -> Iterator[Any]:
        self.read += 1
        yield from self.docs
        if self.docs[-1].doc_id == "unreachable":
            raise ConnectionError("no network")


SCIFACT = [Titled("1", "one", "A"), Titled("2", "two", ""), Titled("bad id", "three", "")]
MSMARCO = [Titled("0", "zero", ""), Titled("1", "one", "")]
QUERIES, QRELS = [Question("q", "which?"), Question("unjudged", "what?")], [Judgement("q", "1", 2)]


def registry() -> dict[str, Dataset]:
    return {
        "beir/scifact": Dataset(SCIFACT, QUERIES),
        "beir/scifact/test": Dataset(SCIFACT, QUERIES, QRELS),
        "beir/scifact/train": Dataset(SCIFACT, [*QUERIES, Question("r", "and?")], [Judgement("r", "2", 1)]),
        "beir/scifact/train/part": Dataset(SCIFACT, QUERIES, QRELS),
        "clashing": Dataset(MSMARCO),
        "clashing/one": Dataset(MSMARCO, QUERIES, QRELS),
        "clashing/two": Dataset(MSMARCO, [Question("q", "another")], QRELS),
        "far": Dataset([Titled("unreachable", "far", "")]),
        "talk": Dataset([], QUERIES, QRELS),
        "msmarco-passage": Dataset(MSMARCO),
        **{
            f"msmarco-passage/{name}": Dataset(MSMARCO, [Question(name, f"of {name}")], [Judgement(name, "1", 1)])
            for name in ("train", "dev", "dev/small", "trec-dl-2019", "trec-dl-2020", "trec-dl-hard")
        },
    }


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    """Datasets of the stand-in."""
    datasets = registry()
    module = ModuleType("ir_datasets")
    module.__spec__ = ModuleSpec("ir_datasets", None)
    monkeypatch.setitem(sys.modules, "ir_datasets", module)

    def parent(name: str) -> str:
        parents = [n for n in datasets if name.startswith(f"{n}/") and datasets[n].docs == datasets[name].docs]
        return min(parents, key=len, default=name)

    for name, value in {"load": datasets.__getitem__, "registry": datasets, "docs_parent_id": parent}.items():
        setattr(module, name, value)
    return datasets


def test_a_beir_collection_is_converted(library: dict[str, Dataset]) -> None:
    source = "irds:beir/scifact"
    assert not is_converted(source)
    collection = open_collection(source)
    assert is_converted(source)
    assert collection.name == collection.location() == "scifact"
    assert collection.splits() == ["test", "train"]
    assert collection.queries("test") == [Query("q", "which?")]
    assert collection.qrels("test") == {"q": {"1": 2}}
    assert collection.queries("train") == [Query("r", "and?")]
    first, second, third = collection.records()
    assert [first, second] == [Passage("1", "A", "one"), Passage("2", "", "two")]
    assert str(third).startswith("irds:beir/scifact/corpus.jsonl:3: bad id")


def test_a_collection_is_converted_once(library: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_collection("irds:beir/scifact").source_state()
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    again = open_collection("irds:beir/scifact")
    assert (again.source_state(), again.language) == (state, "zh"), "without the library"
    assert library["beir/scifact"].read == 1


def test_a_split_is_opened_by_its_name(library: dict[str, Dataset]) -> None:
    assert open_collection("irds:beir/scifact/test").splits() == ["test"]
    part = open_collection("irds:beir/scifact/train/part")
    assert (part.name, part.splits()) == ("scifact", ["train.part"])


def test_ms_marco_has_the_splits_of_its_files(library: dict[str, Dataset]) -> None:
    collection = open_collection("irds:msmarco-passage")
    assert (collection.name, collection.splits()) == ("msmarco", ["dev", "dl19", "dl20", "train"])
    assert collection.queries("dev") == [Query("dev/small", "of dev/small")]
    assert collection.queries("dl20") == [Query("trec-dl-2020", "of trec-dl-2020")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("irds:beir/scifacts", r"ir_datasets knows no 'beir/scifacts'\. Did you mean 'beir/scifact'"),
        ("irds:talk", "irds:talk has no passages"),
        ("irds:far", "irds:far: ir_datasets cannot read it: no network"),
        ("irds:clashing", "query 'q' of split two has another text in another split: give one split"),
    ],
)
def test_a_failed_conversion_leaves_no_file(library: dict[str, Dataset], source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_collection(source)
    assert not is_converted(source)
    assert not [path for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.collections.irds.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"irds:beir/nq needs ir_datasets, .*pip install 'diffretriever\[irds\]'"):
        open_collection("irds:beir/nq")
