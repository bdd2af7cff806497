"""Decides whether documents are split into chunks, and how their length is measured."""

from __future__ import annotations

import logging
from functools import partial

from diffretriever.collections import Collection
from diffretriever.collections.chunks import ChunkedCollection
from diffretriever.pipelines.encoder_start import preparer_of
from diffretriever.schemas.retriever import RetrieverConfig, is_neural

log = logging.getLogger(__name__)


def count_tokens(retriever_json: str, text: str) -> int:
    """Count tokens, without special ones; each process loads the retriever's tokenizer once."""
    (count,) = preparer_of(retriever_json).vocabulary.count_tokens([text])
    return count


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
    retriever_json = retriever.model_dump_json()
    preparer = preparer_of(retriever_json)
    limit = min(preparer.text.max_passage_tokens, preparer.vocabulary.max_length)
    if preparer.text.length_semantics != "text":
        (empty,) = preparer.prepare_passages([""], [""])
        limit -= empty.n_tokens
    if tokens is not None and tokens > limit:
        log.warning("chunks of %d tokens: the retriever reads the first %d of a passage", tokens, limit)
    return ChunkedCollection(collection, tokens or limit, partial(count_tokens, retriever_json))
