"""The recipe's limits of texts, in place of a retriever's own."""

from __future__ import annotations

from schemas.retriever import BackboneRetriever
from schemas.training import Recipe


def with_training_lengths(retriever: BackboneRetriever, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever with the recipe's limits of queries and passages in place of its own."""
    limits = {"max_query_tokens": recipe.max_query_tokens, "max_passage_tokens": recipe.max_passage_tokens}
    return retriever.model_copy(update={"text": retriever.text.model_copy(update=limits)})
