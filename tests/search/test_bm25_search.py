"""BM25: Lucene's formula by hand, analysis, persistence, deletes."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bm25s
import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from diffretriever.collections import Passage
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.search import open_searcher
from diffretriever.search.bm25 import LUCENE_STOP_WORDS, Bm25Search, analyse, bm25_folder
from diffretriever.vectors.hits import Hit
from tests.search.conftest import PASSAGES, QUERIES, WORDS
from tests.search.sparse_cases import by_library


def test_scores_and_ties_equal_those_of_bm25s(bm25_index: PassageIndex) -> None:
    """Of two fragments, a passage deleted since; empty, unknown and repeated words too."""
    more = [Passage(f"a{p.id}", p.title, p.text) for p in PASSAGES[:20]]
    Committer(bm25_index).commit({"more": write_block(bm25_index.uri, text_table(more, "c"))}, [])
    bm25_index.delete(["d7"])
    passages = [p for p in [*PASSAGES, *more] if p.id != "d7"]
    queries = [*QUERIES, *(p.text for p in PASSAGES), "", "zzz", "slab", "slab slab slab", " ".join(WORDS)]
    for top_k in (1, 2, 17, 500):
        hits = Bm25Search(bm25_index).search(queries, top_k)
        assert hits == by_library(passages, queries, top_k)
    assert len({score for _, score in hits[-2]}) < len(hits[-2]), "there are ties"


def test_several_segments_have_the_scores_of_one(bm25_index: PassageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    hits = Bm25Search(bm25_index).search(QUERIES, 100)
    bm25_folder(bm25_index).remove()
    for name in ("BLOCK_ROWS", "_TEXTS_AT_ONCE"):
        monkeypatch.setattr(f"diffretriever.search.bm25.{name}", 16)
    monkeypatch.setattr("diffretriever.search.bm25._SEGMENT_BLOCKS", 1)
    assert Bm25Search(bm25_index).search(QUERIES, 100) == hits
    assert (bm25_folder(bm25_index).path / "000002-rows.bin").exists()


@pytest.mark.parametrize("texts", [[], ["the", "of the"]])
def test_an_index_without_words_returns_no_hits(texts: list[str], tmp_path: Path) -> None:
    index = PassageIndex.create(str(tmp_path / "empty"), bm25_manifest(Bm25Retriever()))
    passages = [Passage(f"p{number}", "", text) for number, text in enumerate(texts)]
    if passages:
        Committer(index).commit({"all": write_block(index.uri, text_table(passages, "c"))}, [])
    assert Bm25Search(index).search(["slab"], 3) == [[]]


def test_analysis() -> None:
    assert analyse(["The dog's running; running THE dogs!", "", "the"]) == [["dog", "run", "run", "dog"], [], []]


ODD = st.characters(codec="utf-8") | st.sampled_from("aes'\u2019 \u0130\u00df\n.")


@given(st.lists(st.text(ODD, max_size=40), max_size=8))
def test_analysis_equals_that_of_bm25s(texts: list[str]) -> None:
    plain = [re.sub(r"['\u2019\uff07]s\b", "", text.lower()) for text in texts]
    stemmer = Stemmer.Stemmer("porter")
    options = {"stopwords": LUCENE_STOP_WORDS, "stemmer": stemmer, "return_ids": False, "show_progress": False}
    assert analyse(texts) == bm25s.tokenize(plain, token_pattern=r"\w+", **options)


@pytest.mark.parametrize("damaged", ["vocabulary.json", "000000-starts.bin"])
def test_damaged_bm25_files_are_rebuilt(damaged: str, bm25_index: PassageIndex) -> None:
    first = open_searcher(bm25_index.uri).search(QUERIES)
    file = bm25_folder(bm25_index).path / damaged
    written = file.read_bytes()
    file.write_bytes(b"x" * len(written))
    assert open_searcher(bm25_index.uri).search(QUERIES) == first
    assert file.read_bytes() == written


def test_bm25_works_in_a_read_only_index(bm25_index: PassageIndex) -> None:
    (Path(bm25_index.uri) / "bm25").write_text("in the way")
    with pytest.warns(UserWarning, match="every process builds it again"):
        assert open_searcher(bm25_index.uri).search(QUERIES[:1])["sparse"][0]


def test_concurrent_first_searches_agree(bm25_index: PassageIndex) -> None:
    """All of them build it, and one keeps it; the others' folders find it there."""
    bm25_folder(bm25_index).remove()
    start = threading.Barrier(4)

    def first(_: int) -> list[list[Hit]]:
        start.wait()
        return [list(hits) for hits in Bm25Search(bm25_index).search(QUERIES, 5)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(first, range(4)))
    assert all(hits == results[0] for hits in results)
    assert bm25_folder(bm25_index).size() is not None
