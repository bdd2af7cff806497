"""A client of the search server, typed by `schemas.serve`. Importing it loads neither torch nor Ray nor Lance."""

from __future__ import annotations

from diffretriever.client.clients import AsyncSearchClient, SearchClient
from diffretriever.client.exchange import AnswerError, ClientError, ProblemError, Retries, UnreachableError

__all__ = [
    "AnswerError",
    "AsyncSearchClient",
    "ClientError",
    "ProblemError",
    "Retries",
    "SearchClient",
    "UnreachableError",
]
