"""A client of the search application, typed by `schemas.serve`. Importing it loads neither torch nor Ray nor Lance."""

from __future__ import annotations

from diffretriever.client.asynchronous import AsyncSearchClient
from diffretriever.client.blocking import SearchClient
from diffretriever.client.errors import AnswerError, ClientError, ProblemError, UnreachableError
from diffretriever.client.retries import Retries

__all__ = [
    "AnswerError",
    "AsyncSearchClient",
    "ClientError",
    "ProblemError",
    "Retries",
    "SearchClient",
    "UnreachableError",
]
