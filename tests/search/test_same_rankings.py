"""Every way to an answer ranks alike: one process, parts merged, a server, shards of one; accelerated or not.

Vectors and weights are few numbers that floats hold exactly, so that passages tie often, and a plain loop over all of
them in Python says what each ranking must be, to the bit.

Legend: V vectors of a text, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import bm25s
import numpy as np
import pyarrow as pa
import pytest
import torch

from diffretriever.collections import Passage
from diffretriever.index.filters import condition_of
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, text_table, write_block
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.metadata import Columns, Scalar
from diffretriever.schemas.mode import ListName, Mode, lists_of
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import BatchSearchJob, SearchOptions
from diffretriever.schemas.serve import SearchRequest
from diffretriever.search.batch import kept_hits, list_depth, merge, search_lists, searched_depth, to_hits, to_table
from diffretriever.search.bm25 import Bm25Search, analyse
from diffretriever.search.dense import resident
from diffretriever.search.searcher import Searcher
from diffretriever.serving.backend import Lists, search_together
from diffretriever.serving.load import NO_CAPS
from diffretriever.serving.searches import Search, with_bm25
from diffretriever.serving.snapshots import Snapshots, View
from diffretriever.vectors.fusion import ranked
from diffretriever.vectors.hits import Hit, Hits
from diffretriever.vectors.representations import Representations
from tests.search.dense_cases import build_codes, build_postings

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


def encoded(some: list[Text]) -> Representations:
    pairs = [pair for text in some for pair in sorted(text.bag.items())]
    counts = [len(text.vectors_VH) for text in some]
    return Representations(
        vectors_MH=np.concatenate([text.vectors_VH for text in some]),
        offsets=np.cumsum([0, *counts], dtype=np.int64),
        slot_tokens=np.full(sum(counts), -1, np.int32),
        impact_ids=np.array([i for i, _ in pairs], np.int32),
        impact_weights=np.array([w for _, w in pairs], np.float32),
        impact_offsets=np.cumsum([0, *(len(text.bag) for text in some)], dtype=np.int64),
        n_tokens=np.ones(len(some), np.int32),
    )


def best(scores: dict[str, float], k: int) -> list[Hit]:
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


def scaled(hits: list[Hit]) -> dict[str, float]:
    spread = max(hits[0][1] - hits[-1][1], 1e-9) if hits else 1.0
    return {passage: (score - hits[-1][1]) / spread for passage, score in hits}


def of_words(query: Text, passages: dict[str, Text]) -> dict[str, float]:
    """The scores of the library that BM25 is taken from."""
    model = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    model.index(analyse([f"title {passage.text}" for passage in passages.values()]), show_progress=False)
    known = [word for word in analyse([query.text])[0] if word in model.vocab_dict]
    scores = model.get_scores(known).tolist() if known else []
    return {name: score for name, score in zip(passages, scores, strict=False) if score > 0}


def by_hand(
    query: Text, passages: dict[str, Text], k: int, admits: Callable[[str], bool] = lambda _: True
) -> dict[Mode, list[Hit]]:
    """The rankings of the passages that are admitted; words count as in all of them."""
    words = {name: score for name, score in of_words(query, passages).items() if admits(name)}
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
    about = {
        "retriever": retriever,
        "weights": "w",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "created": "now",
        "metadata": COLUMNS,
    }
    index = PassageIndex.create(str(folder / "index"), IndexManifest.model_validate(about))
    held: dict[str, Text] = {}
    for size in (30, 1, 25, 12):
        ids = [f"{prefix}{number}" for prefix, number in zip(rng.choice([*"aé𝄞Z"], size), range(size), strict=True)]
        drawn = texts(rng, size, [0, 1, 3])
        passages = [Passage(i, "title", t.text, _metadata(i)) for i, t in zip(ids, drawn, strict=True)]
        collections = ["even" if int(i[1:]) % 2 == 0 else "odd's" for i in ids]
        table = text_table(passages, collections, COLUMNS)
        receipt = write_block(index.uri, beside(table, encoded(drawn).to_arrow()))
        Committer(index).commit({"key": receipt}, [i for i in ids if i in held])
        held |= dict(zip(ids, drawn, strict=True))
    gone = rng.choice([*held], 7, replace=False).tolist()
    index.delete(gone)
    ids = [*rng.choice([*held], QUERIES - 2, replace=False).tolist(), "other", "another"]
    return Made(index, {i: text for i, text in held.items() if i not in gone}, texts(rng, QUERIES, [1, 2, 4]), ids)


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
        dict(search_lists(IndexPart.of_fragments(made.opened, each), encoded(made.queries), job, "cpu"))
        for each in groups
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


def served(made: Made, shards: int, wanted: str | None = None) -> Lists:
    """As replicas of shards find, merged as the ingress does; of one shard as a replica that does all finds."""
    options = SearchOptions(index=made.opened.uri)
    view = View(PassageIndex.open(made.opened.uri))
    condition = None if wanted is None else condition_of(wanted, COLUMNS)
    request = SearchRequest(query=asked(made), k=FEW)
    search = Search(request, asked(made), view, "dense+sparse+bm25", condition, NO_CAPS)
    opened = [Snapshots(options, CPU, (number, shards)) for number in range(shards)]
    found = [search_together(each, [(encoded(made.queries), search.spec)])[0] for each in opened]
    if shards == 1:
        return with_bm25(search, found[0])
    tables = [{name: to_table(hits, with_rows=True) for name, hits in each.items()} for each in found]
    merged: dict[ListName, pa.Table] = {
        name: merge([each[name] for each in tables], search.spec.depth) for name in search.spec.lists
    }
    return with_bm25(search, to_hits(merged, QUERIES))


def score_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let codes be scored as on a GPU: a few passages at a time, of which only the first ones stay in memory."""
    monkeypatch.setattr("diffretriever.search.dense.resident_codes", resident.ResidentCodes)
    monkeypatch.setattr(resident, "_PIECE_BYTES", 100)
    monkeypatch.setattr(resident, "room_on", lambda _: 300)


@pytest.mark.parametrize("seed", range(3))
def test_every_way_gives_the_ranking_computed_by_hand(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = made(tmp_path, seed)
    expected = [by_hand(query, it.passages, 1001) for query in it.queries]
    job = BatchSearchJob(
        index=it.opened.uri, collection="x", output=tmp_path / "out", modes=MODES, top_k=FEW, exclude_self=True
    )
    depth = searched_depth(FEW, exclude_self=True)
    for accelerated in ("", "by codes", "by codes in a device's memory"):
        if accelerated == "by codes":
            build_codes(it.opened)
            build_postings(it.opened)
        elif accelerated:
            score_on_a_device(monkeypatch)
        for found in (in_process(it, depth), by_parts(it, job, depth)):
            for mode in MODES:
                assert found[mode] == [own[mode][:depth] for own in expected], (mode, accelerated)
                kept = kept_hits(it.ids, found[mode], FEW, exclude_self=True)
                pairs = zip(it.ids, expected, strict=True)
                assert kept == [[hit for hit in own[mode][:depth] if hit[0] != name][:FEW] for name, own in pairs]
        for shards in (1, 3):
            lists = served(it, shards)
            for mode in MODES:
                hits = ranked(mode, lists, FEW)
                assert hits == [own[mode][:FEW] for own in expected], (mode, accelerated, shards)
                read = it.opened.take(hits.rows(), ["id"]).column("id").to_pylist()
                assert read == hits.names(), "rows are where hits say"


def test_every_way_filters_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found of the passages that a filter admits is the whole ranking without the others."""
    it = made(tmp_path, seed=1)
    job = BatchSearchJob(index=it.opened.uri, collection="x", output=tmp_path / "out", modes=MODES, top_k=FEW)
    expected = {
        wanted: [by_hand(query, it.passages, 1000, admits) for query in it.queries]
        for wanted, admits in FILTERS.items()
    }
    for accelerated in ("", "scanned whole", "scanned where admitted", "scanned whole on a device"):
        if accelerated == "scanned whole":
            build_codes(it.opened)
            build_postings(it.opened)
        elif accelerated.endswith("device"):
            score_on_a_device(monkeypatch)
        monkeypatch.setattr("diffretriever.search.dense.coded._FEW", 2 if accelerated.endswith("admitted") else 0)
        searcher = searcher_of(it)
        for wanted, own in expected.items():
            found = searcher.search(asked(it), k=FEW, modes=MODES, filter=wanted)
            merged = by_parts(it, job.model_copy(update={"filter": wanted}), FEW)
            lists = {shards: served(it, shards, wanted) for shards in (1, 3)}
            for mode in MODES:
                right = [each[mode][:FEW] for each in own]
                assert found[mode] == right, (wanted, mode, accelerated)
                assert merged[mode] == right, (wanted, mode, accelerated)
                for shards, of_all in lists.items():
                    hits = ranked(mode, of_all, FEW)
                    assert hits == right, (wanted, mode, accelerated, shards)
                    assert it.opened.take(hits.rows(), ["id"]).column("id").to_pylist() == hits.names()
