"""Words of any language: found by BM25, kept as content words, chosen by script, reported if they are not covered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import diffretriever as dr
from diffretriever.core.progress import warn_once
from diffretriever.encoders import words
from diffretriever.encoders.words import content_words, in_language, language_of
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from diffretriever.presets import load_retriever, retriever_name
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.retriever import Bm25Retriever

CHINESE = "北京是中国的首都。"
# Language, passage, a content word in it, the form of a query, a stop word.
SENTENCES = [
    ("zh", CHINESE, "首都", "首都", "的"),
    ("ja", "東京は日本の首都です。", "首都", "首都", "は"),
    ("th", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "เมือง", "เมือง", "เป็น"),
    ("hi", "नई दिल्ली भारत की राजधानी है", "दिल्ली", "दिल्ली", "की"),
    ("de", "Die Häuser stehen an der Brücke.", "häuser", "Haus", "der"),
    ("fr", "Un verre de l\u2019eau des montagnes.", "eau", "eau", "des"),
    ("ru", "Новости из столицы России.", "столицы", "столица", "из"),
    ("en", "Water the figs weekly.", "figs", "fig", "the"),
]
BY_SCRIPT = {"zh", "ja", "th", "hi", "ru", "en"}


@pytest.fixture(autouse=True)
def _warnings_are_new() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


@pytest.mark.parametrize(("language", "passage", "word", "query", "stop_word"), SENTENCES)
def test_a_word_in_a_sentence_is_found(
    language: str, passage: str, word: str, query: str, stop_word: str, tmp_path: Path
) -> None:
    choice = "auto" if language in BY_SCRIPT else language
    documents = [{"id": "this", "text": passage}, {"id": "other", "text": "12 34"}]
    dr.Index.create(tmp_path / "i", documents, retriever="bm25", language=choice)
    index = dr.Index(tmp_path / "i")
    assert index.search(query).ids == ["this"]
    assert index.retriever.config.language == language
    assert index.retriever.name == "bm25"
    assert word in content_words(passage, language)
    assert stop_word in words.words_of(passage, language) - content_words(passage, language)


def test_full_width_letters_are_folded() -> None:
    assert words.split_words("ＤＮＡの構造", "ja") == ["dna", "の", "構造"]


def test_bm25_of_a_neural_index_has_the_language(tmp_path: Path) -> None:
    index = dr.Index.create(tmp_path / "i", [{"id": "this", "text": CHINESE}], retriever="minilm-pooled")
    assert index.search("首都", mode="bm25").ids == ["this"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (CHINESE, "zh"),
        ("機械学習の入門", "ja"),
        ("用 Python 和 Ray 编写程序", "zh"),
        ("The capital 北京 is a large city", "en"),
        ("서울은 수도이다", "ko"),
        ("Αθήνα", "el"),
        ("القاهرة", "ar"),
        ("", "en"),
        ("12 34", "en"),
        ("Straße", "en"),
    ],
)
def test_the_script_names_the_language(text: str, language: str) -> None:
    assert language_of([text]) == language


def test_a_language_that_is_set_is_kept() -> None:
    german, unset = Bm25Retriever(language="de"), Bm25Retriever()
    assert in_language(german, "auto", [CHINESE], "fr") is german, "a retriever's file"
    assert in_language(unset, "auto", [CHINESE], "fr").language == "fr", "an index, or ir_datasets"
    assert in_language(german, "ko", [CHINESE]).language == "ko", "--language"


def test_a_second_collection_has_the_language_of_the_index(tmp_path: Path) -> None:
    for name, text in (("one", CHINESE), ("two", "An English passage.")):
        (tmp_path / f"{name}.csv").write_text(f"id,text\n{name},{text}\n", "utf-8")
        job = EncodeJob(collection=str(tmp_path / f"{name}.csv"), index=str(tmp_path / "i"), retriever="bm25")
        encode_collection(job)
    assert PassageIndex.open(str(tmp_path / "i")).manifest.retriever.language == "zh"


def test_a_script_that_english_does_not_cover_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = dr.Index.create(tmp_path / "i", [CHINESE], retriever="bm25", language="en")
    index.add(["上海很大。"])
    assert [record.getMessage().endswith("--language zh") for record in caplog.records] == [True]
    warn_once.cache_clear()
    assert index.search(["首都", "上海"])[0].ids == []
    assert len(caplog.records) == 2
    warn_once.cache_clear()
    dr.Retriever("diffretriever-minilm").encode_queries("齉龘")  # not in its vocabulary
    assert len(caplog.records) == 3
    warn_once.cache_clear()
    dr.Index.create(tmp_path / "zh", [CHINESE], retriever="bm25").search("長崎")
    assert len(caplog.records) == 3, "Chinese words cover it"


@pytest.mark.parametrize("code", ["chinese", "ZH", "zh-tw", ""])
def test_other_names_than_codes_are_errors(code: str) -> None:
    with pytest.raises(ValueError, match="give an ISO 639-1 code, such as en, de or zh"):
        EncodeJob(collection="c", index="i", language=code)
    with pytest.raises(ValueError, match="ISO 639-1"):
        Bm25Retriever(language=code)


@pytest.mark.parametrize(
    ("name", "depends"), [("diffretriever-minilm", True), ("bm25", True), ("minilm-pooled", False)]
)
def test_only_stored_words_are_in_the_identity(name: str, *, depends: bool) -> None:
    english = load_retriever(name)
    chinese = english.model_copy(update={"language": "zh"})
    assert (english.identity() != chinese.identity()) == depends
    assert retriever_name(chinese) == name
