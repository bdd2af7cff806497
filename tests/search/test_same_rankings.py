"""Every search method ranks alike: in one process, in merged parts, and in shards of a server; accelerated or not.

Vectors and weights are few numbers that floats represent exactly, so that passages tie often. A loop over all passages
computes the expected rankings, bit for bit.

Legend: V vectors of a text, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from diffretriever.collections import Passage
from diffretriever.index.filters import condition_of
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.metadata import Columns, Scalar
from diffretriever.schemas.mode import ListName, Mode, lists_of
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import BatchSearchJob, SearchOptions
from diffretriever.schemas.serve import SearchRequest
from diffretriever.search.batch import kept_hits, list_depth, merge, search_lists, searched_depth, to_hits, to_table
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import resident
from diffretriever.search.searcher import Searcher
from diffretriever.serving.backend import Lists, search_together
from diffretriever.serving.load import NO_CAPS
from diffretriever.serving.searches import Search, with_bm25
from diffretriever.serving.snapshots import Snapshots, View
from diffretriever.vectors.fusion import ranked
from diffretriever.vectors.hits import Hit, Hits
from diffretriever.vectors.representations import Representations
from tests.index.index_cases import represented
from tests.search.dense_cases import build_codes, build_postings
from tests.search.sparse_cases import by_library

HIDDEN, VOCAB, QUERIES, FEW = 4, 12, 6, 4
MODES: tuple[Mode, ...] = ("dense", "sparse", "hybrid", "bm25", "dense+bm25", "sparse+bm25", "dense+sparse+bm25")
NOUNS = ["heat", "slab", "wing", "mask"]
CPU = torch.device("cpu")


class Text(NamedTuple):
    vectors_VH: np.ndarray
    bag: dict[int, float]
    text: str


def texts(rng: np.random.Generator, count: int, slots: list[int]) -> list[Text]:
    drawn = []
    for _ in range(count):
        vectors_VH = rng.choice([-0.5, 0.0, 0.5], (rng.choice(slots), HIDDEN)).astype(np.float16)
        words = rng.choice(VOCAB, rng.integers(0, 4), replace=False).tolist()
        bag = {word: float(rng.integers(1, 3)) / 2 for word in words}
        drawn.append(Text(vectors_VH, bag, " ".join(["the", *rng.choice(NOUNS, rng.integers(0, 4))])))
    return drawn


def encoded(texts: list[Text]) -> Representations:
    return represented([text.vectors_VH for text in texts], [text.bag for text in texts])


def best(scores: dict[str, float], k: int) -> list[Hit]:
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


def scaled(hits: list[Hit]) -> dict[str, float]:
    spread = max(hits[0][1] - hits[-1][1], 1e-9) if hits else 1.0
    return {passage: (score - hits[-1][1]) / spread for passage, score in hits}


def bm25_scores(query: Text, passages: dict[str, Text]) -> dict[str, float]:
    texts = [Passage(name, "title", passage.text) for name, passage in passages.items()]
    return dict(by_library(texts, [query.text], len(texts))[0])


def by_hand(
    query: Text, passages: dict[str, Text], k: int, admits: Callable[[str], bool] = lambda _: True
) -> dict[Mode, list[Hit]]:
    """The rankings of the passages that are admitted; words count as in all of them."""
    words = {name: score for name, score in bm25_scores(query, passages).items() if admits(name)}
    passages = {name: text for name, text in passages.items() if admits(name)}
    dense, sparse = {}, {}
    for name, passage in passages.items():
        products = [[float(np.dot(q, p)) for p in passage.vectors_VH] for q in query.vectors_VH.astype(float)]
        if len(passage.vectors_VH):
            dense[name] = float(np.float32(sum(map(max, products)) / len(products)))
        shared = query.bag.keys() & passage.bag.keys()
        if shared:
            sparse[name] = sum(query.bag[word] * passage.bag[word] for word in shared)
    lists = {"dense": dense, "sparse": sparse, "bm25": words}
    return {mode: best(_summed([lists[name] for name in lists_of(mode)]), k) for mode in MODES}


def _summed(lists: list[dict[str, float]]) -> dict[str, float]:
    if len(lists) == 1:
        return lists[0]
    parts = [scaled(best(scores, 1000)) for scores in lists]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(1 / len(parts) * part.get(name, 0.0) for part in parts) for name in names}


class Made(NamedTuple):
    opened: PassageIndex
    passages: dict[str, Text]
    queries: list[Text]
    ids: list[str]
    """Of the queries; some are those of passages."""


COLUMNS: Columns = {"year": "int64", "lang": "string"}


def _metadata(passage_id: str) -> dict[str, Scalar]:
    """What a passage has, by its id; some have none of it."""
    number = int(passage_id[1:])
    year: dict[str, Scalar] = {"year": 2000 + number} if number % 5 else {}
    return {**year, "lang": "en" if passage_id[0] < "b" else "o'k"}


def _year(passage_id: str) -> int | None:
    year = _metadata(passage_id).get("year")
    return None if year is None else int(str(year))


FILTERS: dict[str, Callable[[str], bool]] = {
    "year >= 2008": lambda i: (_year(i) or 0) >= 2008,
    "year BETWEEN 2001 AND 2003 OR id = 'a5'": lambda i: _year(i) in (2001, 2002, 2003) or i == "a5",
    "year IS NULL": lambda i: _year(i) is None,
    "NOT year > 2010": lambda i: _year(i) is not None and (_year(i) or 0) <= 2010,
    "lang = 'o''k' AND collection = 'odd''s'": lambda i: i[0] >= "b" and int(i[1:]) % 2 == 1,
    "lang IN ('en', 'xx')": lambda i: i[0] < "b",
    "year > 9000": lambda i: False,
    "lang LIKE 'e%' OR lang LIKE 'o%'": lambda i: True,
}


def made(folder: Path, seed: int) -> Made:
    """Write an index of several fragments, with passages replaced and deleted."""
    rng = np.random.default_rng(seed)
    retriever = MaskedRetriever.model_validate({"backbone": {"source": "x", "dtype": "float32"}, "budget": "q1p1"})
    manifest = {
        "retriever": retriever,
        "weights": "w",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "created": "now",
        "metadata": COLUMNS,
    }
    index = PassageIndex.create(str(folder / "index"), IndexManifest.model_validate(manifest))
    stored: dict[str, Text] = {}
    for size in (30, 1, 25, 12):
        ids = [f"{prefix}{number}" for prefix, number in zip(rng.choice([*"aé𝄞Z"], size), range(size), strict=True)]
        drawn = texts(rng, size, [0, 1, 3])
        passages = [Passage(i, "title", t.text, _metadata(i)) for i, t in zip(ids, drawn, strict=True)]
        collections = ["even" if int(i[1:]) % 2 == 0 else "odd's" for i in ids]
        table = text_table(passages, collections, COLUMNS)
        receipt = write_block(index.uri, join_columns(table, encoded(drawn).to_arrow()))
        Committer(index).commit({"key": receipt}, [i for i in ids if i in stored])
        stored |= dict(zip(ids, drawn, strict=True))
    deleted = rng.choice([*stored], 7, replace=False).tolist()
    index.delete(deleted)
    ids = [*rng.choice([*stored], QUERIES - 2, replace=False).tolist(), "other", "another"]
    return Made(index, {i: text for i, text in stored.items() if i not in deleted}, texts(rng, QUERIES, [1, 2, 4]), ids)


def asked(made: Made) -> list[str]:
    return [query.text for query in made.queries]


def searcher_of(made: Made) -> Searcher:
    """As a search job, an evaluation and a validation search have."""
    encoder: Any = SimpleNamespace(
        config=made.opened.manifest.retriever,
        facts=SimpleNamespace(device=CPU),
        encode_queries=lambda texts, budgets: encoded(made.queries),
    )
    return Searcher(made.opened, SearchOptions(index=made.opened.uri), encoder)


def in_process(made: Made, depth: int) -> dict[Mode, Hits]:
    return searcher_of(made).search(asked(made), k=depth, modes=MODES)


def by_parts(made: Made, job: BatchSearchJob, depth: int) -> dict[Mode, Hits]:
    """As a batch search does on several machines."""
    groups = split_fragments(made.opened, 3).values()
    parts = [
        dict(search_lists(IndexPart.of_fragments(made.opened, numbers), encoded(made.queries), job, "cpu"))
        for numbers in groups
    ]
    merged: dict[ListName, pa.Table] = {
        name: merge([part[name] for part in parts], list_depth(job)) for name in parts[0]
    }
    bm25 = Bm25Search(made.opened)
    if job.filter is not None:
        bm25 = bm25.admitting(IndexPart.filtered(made.opened, condition_of(job.filter, COLUMNS)))
    merged["bm25"] = to_table(bm25.search(asked(made), list_depth(job)))
    lists = to_hits(merged, QUERIES)
    return {mode: ranked(mode, lists, depth) for mode in MODES}


def served(made: Made, shards: int, text: str | None = None) -> Lists:
    """As replicas of shards find, merged as the ingress does; of one shard as a replica that does all finds."""
    options = SearchOptions(index=made.opened.uri)
    view = View(PassageIndex.open(made.opened.uri))
    condition = None if text is None else condition_of(text, COLUMNS)
    request = SearchRequest(query=asked(made), k=FEW)
    search = Search(request, asked(made), view, "dense+sparse+bm25", condition, NO_CAPS)
    opened = [Snapshots(options, CPU, (number, shards)) for number in range(shards)]
    lists_of_shards = [search_together(each, [(encoded(made.queries), search.spec)])[0] for each in opened]
    if shards == 1:
        return with_bm25(search, lists_of_shards[0])
    tables = [{name: to_table(hits, with_rows=True) for name, hits in each.items()} for each in lists_of_shards]
    merged: dict[ListName, pa.Table] = {
        name: merge([each[name] for each in tables], search.spec.depth) for name in search.spec.lists
    }
    return with_bm25(search, to_hits(merged, QUERIES))


def score_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let codes be scored as on a GPU: a few passages at a time, of which only the first ones stay in memory."""
    monkeypatch.setattr("diffretriever.search.dense.resident_codes", resident.ResidentCodes)
    monkeypatch.setattr(resident, "_PIECE_BYTES", 100)
    monkeypatch.setattr(resident, "free_memory", lambda _: 300)


@pytest.mark.parametrize("seed", range(3))
def test_every_search_method_gives_the_ranking_computed_by_hand(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(tmp_path, seed)
    expected = [by_hand(query, case.passages, 1001) for query in case.queries]
    job = BatchSearchJob(
        index=case.opened.uri, collection="x", output=tmp_path / "out", modes=MODES, top_k=FEW, exclude_self=True
    )
    depth = searched_depth(FEW, exclude_self=True)
    for accelerated in ("", "by codes", "by codes in a device's memory"):
        if accelerated == "by codes":
            build_codes(case.opened)
            build_postings(case.opened)
        elif accelerated:
            score_on_a_device(monkeypatch)
        for rankings in (in_process(case, depth), by_parts(case, job, depth)):
            for mode in MODES:
                assert rankings[mode] == [ranking[mode][:depth] for ranking in expected], (mode, accelerated)
                without_self = kept_hits(case.ids, rankings[mode], FEW, exclude_self=True)
                pairs = zip(case.ids, expected, strict=True)
                assert without_self == [
                    [hit for hit in ranking[mode][:depth] if hit[0] != name][:FEW] for name, ranking in pairs
                ]
        for shards in (1, 3):
            lists = served(case, shards)
            for mode in MODES:
                hits = ranked(mode, lists, FEW)
                assert hits == [ranking[mode][:FEW] for ranking in expected], (mode, accelerated, shards)
                ids = case.opened.take(hits.rows(), ["id"]).column("id").to_pylist()
                assert ids == hits.names(), "rows are where hits say"


def test_every_search_method_filters_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found of the passages that a filter admits is the whole ranking without the others."""
    case = made(tmp_path, seed=1)
    job = BatchSearchJob(index=case.opened.uri, collection="x", output=tmp_path / "out", modes=MODES, top_k=FEW)
    expected = {
        condition: [by_hand(query, case.passages, 1000, admits) for query in case.queries]
        for condition, admits in FILTERS.items()
    }
    for accelerated in ("", "scanned whole", "scanned where admitted", "scanned whole on a device"):
        if accelerated == "scanned whole":
            build_codes(case.opened)
            build_postings(case.opened)
        elif accelerated.endswith("device"):
            score_on_a_device(monkeypatch)
        monkeypatch.setattr("diffretriever.search.dense.coded._FEW", 2 if accelerated.endswith("admitted") else 0)
        searcher = searcher_of(case)
        for condition, rankings in expected.items():
            results = searcher.search(asked(case), k=FEW, modes=MODES, filter=condition)
            merged = by_parts(case, job.model_copy(update={"filter": condition}), FEW)
            lists = {shards: served(case, shards, condition) for shards in (1, 3)}
            for mode in MODES:
                best_hits = [ranking[mode][:FEW] for ranking in rankings]
                assert results[mode] == best_hits, (condition, mode, accelerated)
                assert merged[mode] == best_hits, (condition, mode, accelerated)
                for shards, shard_lists in lists.items():
                    hits = ranked(mode, shard_lists, FEW)
                    assert hits == best_hits, (condition, mode, accelerated, shards)
                    assert case.opened.take(hits.rows(), ["id"]).column("id").to_pylist() == hits.names()
