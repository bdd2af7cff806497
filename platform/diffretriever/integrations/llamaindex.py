"""A retriever for LlamaIndex over a search server. Needs `llama-index-core`, and neither torch nor Ray."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from diffretriever.client import AsyncSearchClient, SearchClient
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import AskedBudget, SearchResponse


class SearchRetriever(BaseRetriever):
    """Finds passages by a client, which stays the caller's to close.

    Nodes have the passage's text (its title, where it has no text), its id and its score; their metadata are `id`,
    `title`, `collection`, `rank`, `scores` by mode, and `index_version`. Calls raise what the client's do.
    """

    def __init__(
        self,
        client: SearchClient,
        async_client: AsyncSearchClient | None = None,
        *,
        k: int = 10,
        mode: Mode | None = None,
        budget: AskedBudget = None,
        collection: str | None = None,
    ) -> None:
        """Set the options of `SearchClient.search`; without an async client, `aretrieve` blocks on `client`."""
        super().__init__()
        self._client, self._async_client = client, async_client
        self._options: dict[str, Any] = {"k": k, "mode": mode, "budget": budget, "collection": collection}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._client.search(query_bundle.query_str, **self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._async_client is None:
            return self._retrieve(query_bundle)
        return _nodes(await self._async_client.search(query_bundle.query_str, **self._options))


def _nodes(answer: SearchResponse) -> list[NodeWithScore]:
    """Return the nodes of the answer to one query, best first."""
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
