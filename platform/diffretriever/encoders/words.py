"""Words of texts in any language: word boundaries, stop words, stems; and the language of texts by their script.

English words are runs of letters and digits, as in the paper's code. ICU finds those of other languages: Unicode word
boundaries (UAX #29), with dictionaries for Chinese, Japanese, Thai, Lao, Khmer and Burmese.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Literal, TypeVar

import Stemmer

from diffretriever.core.progress import warn_once
from diffretriever.schemas.language import AUTO, ENGLISH
from diffretriever.schemas.retriever import RetrieverBase

R = TypeVar("R", bound=RetrieverBase)

_LOG = logging.getLogger(__name__)
_WORD = re.compile(r"[^\W_]+")
_FORMS: dict[str, Literal["NFKC"]] = {"ja": "NFKC", "ko": "NFKC", "zh": "NFKC"}
"""Unicode forms other than NFC. NFKC folds full and half width, like Lucene's CJKWidthFilter."""
_ELIDING = {"ca", "fr", "ga", "it"}
"""Languages in which an apostrophe ends a word (l'eau), as in Lucene's ElisionFilter."""
_APOSTROPHES = str.maketrans("'\u2019", "  ")
_LANGUAGE_OF_SCRIPT = {
    "ARABIC": "ar",
    "ARMENIAN": "hy",
    "BENGALI": "bn",
    "CJK": "zh",
    "CYRILLIC": "ru",
    "DEVANAGARI": "hi",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "LAO": "lo",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo",
}
"""First word of a letter's Unicode name → most common language of the script."""
_LEAST_SHARE = 0.2
"""Share of the letters from which a script counts: texts in it also contain Latin names and terms."""
_LEAST_KANA = 0.1
"""Ratio of kana to Han characters from which a text is Japanese."""


def split_words(text: str, language: str) -> list[str]:
    """Return the words of a text in order, in lower case; combining marks stay in them."""
    if language == ENGLISH:
        return _WORD.findall(text.lower())
    # Loads 30 MB of Unicode data.
    from icu4py.breakers import WordBreaker

    plain = _normal(text, language)
    if language in _ELIDING:
        plain = plain.translate(_APOSTROPHES)
    return [part for part in WordBreaker(plain, language) if _WORD.search(part)]


def words_of(text: str, language: str = ENGLISH) -> set[str]:
    """Return the distinct words of a text, in lower case."""
    return set(split_words(text, language))


def content_words(text: str, language: str = ENGLISH) -> set[str]:
    """Return the distinct words of a text except stop words, in lower case."""
    return words_of(text, language) - stop_words(language)


@cache
def stop_words(language: str = ENGLISH) -> frozenset[str]:
    """Return the stop words of a language, in lower case; empty if no list is known.

    English: `stopwords.txt`. Others: the shorter of NLTK's list (in bm25s) and that of Stopwords ISO, because long
    lists contain content words, such as the Russian for water.
    """
    if language == ENGLISH:
        lines = files(__package__).joinpath("stopwords.txt").read_text("utf-8").splitlines()
        return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
    import stopwordsiso
    from bm25s.tokenization import Tokenizer

    lists = [stopwordsiso.stopwords(language)] if stopwordsiso.has_lang(language) else []
    try:
        lists.append(set(Tokenizer(stopwords=language).stopwords))
    except ValueError:
        _LOG.debug("bm25s has no stop words for %s", language)
    return frozenset(_normal(word, language) for word in min(lists, key=len, default=()))


def stemmer_of(language: str) -> Callable[[str], str]:
    """Return Snowball's stemmer of a language, or the identity for a language without one."""
    try:
        return Stemmer.Stemmer(language).stemWord
    except KeyError:
        return str


def language_of(texts: Iterable[str]) -> str:
    """Return the most common language of the script of `texts`; English for Latin and unknown scripts."""
    letters, languages = 0, Counter[str]()
    for char, count in Counter(chain.from_iterable(texts)).items():
        if char.isalpha():
            letters += count
            if language := _LANGUAGE_OF_SCRIPT.get(unicodedata.name(char, "").partition(" ")[0]):
                languages[language] += count
    if languages["ja"] > _LEAST_KANA * languages["zh"]:
        languages["ja"] += languages.pop("zh", 0)
    ((language, count),) = languages.most_common(1) or [(ENGLISH, letters)]
    return language if count and count >= _LEAST_SHARE * letters else ENGLISH


def in_language(retriever: R, choice: str, texts: Iterable[str], stated: str | None = None) -> R:
    """Return the retriever with the language of its texts; warn if English words do not cover the texts' script.

    Args:
        retriever: its own language counts if its config sets one.
        choice: an ISO 639-1 code, or `auto`: the retriever's own language, `stated`, or that of the script of `texts`.
        texts: a sample.
        stated: the language of the index or collection, if known.
    """
    found = language_of(texts)
    if choice != AUTO:
        language = choice
    elif "language" in retriever.model_fields_set:
        language = retriever.language
    else:
        language = stated or found
    _warn(language, found)
    return retriever if language == retriever.language else retriever.model_copy(update={"language": language})


def warn_of_script(text: str, language: str) -> None:
    """Warn, once for each script, if English words do not cover the script of a text."""
    _warn(language, language_of([text]))


def _warn(language: str, found: str) -> None:
    if language == ENGLISH and found != ENGLISH:
        warn_once(
            "English words do not fit the script of these texts, so BM25 and sparse scores miss many of them: encode "
            f"into a new index with --language {found}"
        )


def _normal(text: str, language: str) -> str:
    return unicodedata.normalize(_FORMS.get(language, "NFC"), text.lower())
