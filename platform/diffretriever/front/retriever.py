"""A retriever by name: what it says of queries and passages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from diffretriever.presets import load_retriever, retriever_name, with_places
from diffretriever.schemas.budget import Budget, BudgetChoice
from diffretriever.schemas.retriever import RetrieverConfig, is_neural

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.vectors.representations import Representations

_BUDGET: TypeAdapter[Any] = TypeAdapter(BudgetChoice | None)


class Retriever:
    """A preset, or what a YAML file describes. Its weights are loaded when they are first needed.

    >>> Retriever("minilm-pooled")
    Retriever('minilm-pooled', modes=dense)
    """

    def __init__(
        self,
        retriever: str | RetrieverConfig = "diffretriever-minilm",
        *,
        backbone: str | None = None,
        adapter: str | None = None,
        budget: str | Budget | None = None,
        device: str = "auto",
    ) -> None:
        """Read the config.

        Args:
            retriever: name of a preset, a YAML file that describes a retriever, `sentence-transformers/` and a model
                (see `presets.library_model`), or a config.
            backbone: folder, object-store URI or hub id to use in place of the retriever's own backbone.
            adapter: the same of a LoRA adapter.
            budget: slots such as `q4p16`, in place of the retriever's own; or the selection.json of a budget sweep.
            device: `cpu`, `cuda`, `cuda:1`; `auto`: a GPU if there is one.

        Raises:
            ValueError: no such preset or file, or it cannot be changed so.
        """
        self._given = retriever
        self.config = _config(retriever, backbone, adapter, budget)
        self.device = device

    @cached_property
    def name(self) -> str:
        """What it was called, or the preset that the config is."""
        return self._given if isinstance(self._given, str) else retriever_name(self._given)

    def on(self, collection: str) -> Retriever:
        """Return the retriever for the collection of this name: itself, where it is the same for all collections."""
        own = self.config.on(collection)
        return self if own == self.config else Retriever(own, device=self.device)

    @property
    def modes(self) -> tuple[str, ...]:
        """The scores that it makes. Indexes are ranked by the config's `default_mode`, or else by the last of these."""
        return self.config.modes

    @cached_property
    def encoder(self) -> Encoder:
        """The loaded model; raises ValueError if there is none, or it cannot be loaded."""
        from diffretriever.encoders import load_encoder

        if not is_neural(self.config):
            raise ValueError(f"{self.name} encodes nothing: it goes by the words of texts")
        return load_encoder(self.config, self.device)

    @property
    def loaded(self) -> Encoder | None:
        """The model, if it is loaded."""
        return self.__dict__.get("encoder")

    def encode_queries(self, queries: str | Sequence[str], budget: int | None = None) -> Representations:
        """Encode queries into vectors and, if the retriever has a sparse side, weighted terms.

        Args:
            queries: a string, or a list of N strings.
            budget: number of slots of each query, K_q; None: the retriever's.

        Returns:
            Vectors, float16 [M, H], with offsets, int64 [N + 1], and term weights.

        Raises:
            ValueError: the retriever has no encoder (BM25) or no slots, or a query encodes to NaN or infinity.
        """
        texts = texts_of(queries)
        if budget is not None and not self.config.has_query_budget:
            raise ValueError(f"{self.name} has no slots, so queries have no budget")
        return self.encoder.encode_queries(texts, None if budget is None else [budget] * len(texts))

    def encode_passages(self, texts: str | Sequence[str], titles: str | Sequence[str] | None = None) -> Representations:
        """Encode N passages, with N titles if you give them, as `encode_queries` encodes queries.

        Raises:
            ValueError: the numbers of texts and titles differ, or the retriever has no encoder.
        """
        passages = texts_of(texts)
        named = [""] * len(passages) if titles is None else texts_of(titles)
        if len(named) != len(passages):
            raise ValueError(f"{len(passages)} texts but {len(named)} titles: give one a text, '' where there is none")
        return self.encoder.encode_passages(named, passages)

    def __repr__(self) -> str:
        return f"Retriever('{self.name}', modes={','.join(self.modes)})"


def _config(
    retriever: str | RetrieverConfig, backbone: str | None, adapter: str | None, budget: str | Budget | None
) -> RetrieverConfig:
    if isinstance(retriever, str):
        return load_retriever(retriever, backbone, _BUDGET.validate_python(budget), adapter)
    if budget is not None:
        raise ValueError("budget: a config has its own")
    return retriever if backbone is None and adapter is None else with_places(retriever, backbone, adapter)


def texts_of(texts: str | Sequence[str]) -> list[str]:
    """Return texts as a list, one string as a list of one; raises ValueError if one is no string."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"text number {number} is a {type(text).__name__}, no string")
    return listed
