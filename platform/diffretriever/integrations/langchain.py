"""A retriever for LangChain over a search server. Needs `langchain-core`, and neither torch nor Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PositiveInt

from diffretriever.client import AsyncSearchClient, SearchClient
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import AskedBudget, SearchResponse

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun


class SearchRetriever(BaseRetriever):
    """Finds passages by a client, which stays the caller's to close.

    Documents have the passage's text (its title, where it has no text) and its id; their metadata are `id`, `title`,
    `collection`, `rank`, `score`, `scores` by mode, and `index_version`. Calls raise what the client's do.
    """

    client: SearchClient = Field(exclude=True, repr=False)
    async_client: AsyncSearchClient | None = Field(None, exclude=True, repr=False)
    """For `ainvoke`; without it that asks by `client`, in a thread."""
    k: PositiveInt = 10
    """Passages wanted for each query."""
    mode: Mode | None = None
    """Score to rank by; None: the index's default."""
    budget: AskedBudget = None
    """K_q, `adaptive`, or None for the retriever's own."""
    collection: str | None = None
    """Search in this collection only."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return _documents(self.client.search(query, **self._options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.async_client is None:
            return await super()._aget_relevant_documents(query, run_manager=run_manager)
        return _documents(await self.async_client.search(query, **self._options))

    @property
    def _options(self) -> dict[str, Any]:
        return {"k": self.k, "mode": self.mode, "budget": self.budget, "collection": self.collection}


def _documents(answer: SearchResponse) -> list[Document]:
    """Return the documents of the answer to one query, best first."""
    return [
        Document(
            id=hit.id,
            page_content=hit.text or hit.title,
            metadata={
                **hit.model_dump(include={"id", "title", "collection", "rank", "score", "scores"}),
                "index_version": answer.index.version,
            },
        )
        for hit in answer.results[0].hits
    ]
