"""A LangChain retriever that queries a search server. Needs only `langchain-core`, not torch or Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PositiveInt

from diffretriever.client import AsyncSearchClient, SearchClient
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import RequestedBudget, SearchResponse

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun


class SearchRetriever(BaseRetriever):
    """Retrieves passages through a client, which you close yourself.

    A document has the passage's id and its text, or the title if the text is empty. Its metadata: `id`, `title`,
    `collection`, `rank`, `score`, `scores` by mode, and `index_version`. Errors are those of the client.
    """

    client: SearchClient = Field(exclude=True, repr=False)
    async_client: AsyncSearchClient | None = Field(None, exclude=True, repr=False)
    """Client of `ainvoke`. Default: `client`, in a thread."""
    k: PositiveInt = 10
    """Passages per query."""
    mode: Mode | None = None
    """Score to rank by. Default: the index's."""
    budget: RequestedBudget = None
    """Number of query slots, K_q, or `adaptive`. Default: the retriever's."""
    filter: str | None = None
    """Condition on metadata, `id` and `collection`. Default: all passages."""

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
        return {"k": self.k, "mode": self.mode, "budget": self.budget, "filter": self.filter}


def _documents(answer: SearchResponse) -> list[Document]:
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
