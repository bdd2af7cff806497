"""A LlamaIndex retriever that queries a search server. Needs only `llama-index-core`, not torch or Ray."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from diffretriever.client import AsyncSearchClient, SearchClient
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import RequestedBudget, SearchResponse


class SearchRetriever(BaseRetriever):
    """Retrieves passages through a client, which you close yourself.

    A node has the passage's id, its score and its text, or the title if the text is empty. Its metadata: `id`, `title`,
    `collection`, `rank`, `scores` by mode, and `index_version`. Errors are those of the client.
    """

    def __init__(
        self,
        client: SearchClient,
        async_client: AsyncSearchClient | None = None,
        *,
        k: int = 10,
        mode: Mode | None = None,
        budget: RequestedBudget = None,
        filter: str | None = None,  # noqa: A002
    ) -> None:
        """Set the options of `SearchClient.search`. Without an async client, `aretrieve` blocks on `client`."""
        super().__init__()
        self._client, self._async_client = client, async_client
        self._options: dict[str, Any] = {"k": k, "mode": mode, "budget": budget, "filter": filter}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._client.search(query_bundle.query_str, **self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._async_client is None:
            return self._retrieve(query_bundle)
        return _nodes(await self._async_client.search(query_bundle.query_str, **self._options))


def _nodes(answer: SearchResponse) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=hit.id,
                text=hit.text or hit.title,
                metadata={
                    **hit.model_dump(include={"id", "title", "collection", "rank", "scores"}),
                    "index_version": answer.index.version,
                },
            ),
            score=hit.score,
        )
        for hit in answer.results[0].hits
    ]
