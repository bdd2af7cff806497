"""Decides whether documents are split into chunks, and how their length is measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffretriever.collections import Collection
from diffretriever.collections.chunks import ChunkedCollection
from diffretriever.pipelines.encoder_start import preparer_of
from diffretriever.schemas.retriever import RetrieverConfig, is_neural

if TYPE_CHECKING:
    from diffretriever.encoders.preparer import Preparer

_ALL = 1 << 30
"""Tokens: more than any text has."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Counts tokens with a retriever's tokenizer, which each process loads on first use."""

    retriever_json: str

    def __call__(self, text: str) -> int:
        """Return how many tokens there are, without special ones."""
        return len(preparer_of(self.retriever_json).vocabulary.tokenise([text], [_ALL])[0])


def count_words(text: str) -> int:
    """Count words, for retrievers without a tokenizer."""
    return len(text.split())


def chunked(collection: Collection, tokens: int | None, retriever: RetrieverConfig) -> Collection:
    """Split documents into chunks of `tokens` tokens, title included; 0 disables splitting.

    By default (None), folders and text files are split to the retriever's limit; other collections are not.
    Retrievers without a tokenizer count words.
    """
    if tokens == 0 or isinstance(collection, ChunkedCollection) or (tokens is None and not collection.holds_documents):
        return collection
    if not is_neural(retriever):
        return collection if tokens is None else ChunkedCollection(collection, tokens, count_words)
    text = retriever.model_dump_json()
    most = _tokens_read(preparer_of(text))
    if tokens is not None and tokens > most:
        log.warning("chunks of %d tokens: the retriever reads the first %d of a passage", tokens, most)
    return ChunkedCollection(collection, tokens or most, TokenCount(text))


def _tokens_read(preparer: Preparer) -> int:
    limit = min(preparer.text.max_passage_tokens, preparer.vocabulary.max_length)
    if preparer.text.length_semantics == "text":
        return limit
    (nothing,) = preparer.prepare_passages([""], [""])
    return limit - nothing.n_tokens
