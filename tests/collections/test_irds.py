"""Collections by `ir_datasets`: converted once, read from then on as any folder. The library is a small stand-in."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
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
    """What `ir_datasets.load` returns."""

    def __init__(self, docs: list[Any], queries: list[Any] | None = None, qrels: list[Judgement] | None = None) -> None:
        self.docs, self.queries, self.qrels = docs, queries, qrels
        self.read = 0

    def has_docs(self) -> bool:
        return bool(self.docs)

    def has_queries(self) -> bool:
        return self.queries is not None

    def has_qrels(self) -> bool:
        return self.qrels is not None

    def docs_lang(self) -> str | None:
        return "zh" if self.docs is SCIFACT else None

    def docs_iter(self) -> Iterator[Any]:
        self.read += 1
        yield from self.docs
        if self.docs[-1].doc_id == "unreachable":
            raise ConnectionError("no network")

    def queries_iter(self) -> Iterator[Any]:
        return iter(self.queries or [])

    def qrels_iter(self) -> Iterator[Judgement]:
        return iter(self.qrels or [])


SCIFACT = [Titled("1", "one", "A"), Titled("2", "two", ""), Titled("bad id", "three", "")]
MSMARCO = [Titled("0", "zero", ""), Titled("1", "one", "")]
ASKED, JUDGED = [Question("q", "which?"), Question("unjudged", "what?")], [Judgement("q", "1", 2)]


def known() -> dict[str, Dataset]:
    return {
        "beir/scifact": Dataset(SCIFACT, ASKED),
        "beir/scifact/test": Dataset(SCIFACT, ASKED, JUDGED),
        "beir/scifact/train": Dataset(SCIFACT, [*ASKED, Question("r", "and?")], [Judgement("r", "2", 1)]),
        "beir/scifact/train/part": Dataset(SCIFACT, ASKED, JUDGED),
        "clashing": Dataset(MSMARCO),
        "clashing/one": Dataset(MSMARCO, ASKED, JUDGED),
        "clashing/two": Dataset(MSMARCO, [Question("q", "another")], JUDGED),
        "far": Dataset([Titled("unreachable", "far", "")]),
        "talk": Dataset([], ASKED, JUDGED),
        "msmarco-passage": Dataset(MSMARCO),
        **{
            f"msmarco-passage/{name}": Dataset(MSMARCO, [Question(name, f"of {name}")], [Judgement(name, "1", 1)])
            for name in ("train", "dev", "dev/small", "trec-dl-2019", "trec-dl-2020", "trec-dl-hard")
        },
    }


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    """The datasets of a stand-in for the library."""
    datasets = known()
    module = ModuleType("ir_datasets")
    module.__spec__ = ModuleSpec("ir_datasets", None)
    monkeypatch.setitem(sys.modules, "ir_datasets", module)

    def parent(name: str) -> str:
        above = [
            each for each in datasets if name.startswith(f"{each}/") and datasets[each].docs == datasets[name].docs
        ]
        return min(above, key=len, default=name)

    for name, value in {"load": datasets.__getitem__, "registry": datasets, "docs_parent_id": parent}.items():
        setattr(module, name, value)
    return datasets


def test_a_beir_collection(library: dict[str, Dataset]) -> None:
    source = "irds:beir/scifact"
    assert not is_converted(source)
    collection = open_collection(source)
    assert is_converted(source)
    assert collection.name == collection.place() == "scifact"
    assert collection.splits() == ["test", "train"]
    assert collection.queries("test") == [Query("q", "which?")]
    assert collection.qrels("test") == {"q": {"1": 2}}
    assert collection.queries("train") == [Query("r", "and?")]
    first, second, third = collection.records()
    assert [first, second] == [Passage("1", "A", "one"), Passage("2", "", "two")]
    assert str(third).startswith("irds:beir/scifact/corpus.jsonl:3: bad id"), "judged as in any other file"


def test_it_is_converted_once(library: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_collection("irds:beir/scifact").source_state()
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    again = open_collection("irds:beir/scifact")
    assert (again.source_state(), again.language) == (state, "zh"), "without the library"
    assert library["beir/scifact"].read == 1


def test_a_split_by_its_own_name(library: dict[str, Dataset]) -> None:
    assert open_collection("irds:beir/scifact/test").splits() == ["test"]
    part = open_collection("irds:beir/scifact/train/part")
    assert (part.name, part.splits()) == ("scifact", ["train.part"])


def test_ms_marco_has_the_splits_of_its_own_files(library: dict[str, Dataset]) -> None:
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
def test_what_cannot_be_converted(library: dict[str, Dataset], source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_collection(source)
    assert not is_converted(source)
    assert not [path for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.collections.irds.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"irds:beir/nq needs ir_datasets, .*pip install 'diffretriever\[irds\]'"):
        open_collection("irds:beir/nq")
