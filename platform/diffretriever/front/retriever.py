"""A retriever by name, which encodes queries and passages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from diffretriever.presets import load_retriever, retriever_name, with_weights
from diffretriever.schemas.budget import Budget, BudgetChoice
from diffretriever.schemas.retriever import RetrieverConfig, is_neural

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder
    from diffretriever.vectors.representations import Representations

_BUDGET: TypeAdapter[Any] = TypeAdapter(BudgetChoice | None)


class Retriever:
    """A preset, or a retriever from a YAML file. The first use loads its weights.

    Example:
        >>> dr.Retriever("minilm-pooled")
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
            retriever: name of a preset, path of a YAML file, `sentence-transformers/MODEL` (see
                `presets.library_model`), or a config.
            backbone: folder, object-store URI or hub id of another backbone.
            adapter: folder, object-store URI or hub id of another LoRA adapter.
            budget: slots such as `q4p16`, or the selection.json of a budget sweep. Default: the retriever's.
            device: `cpu`, `cuda` or `cuda:1`; `auto` selects a GPU if there is one.

        Raises:
            ValueError: unknown preset or file, or the retriever has no such setting.
        """
        self._source = retriever
        self.config = _config(retriever, backbone, adapter, budget)
        self.device = device

    @cached_property
    def name(self) -> str:
        """Name that you passed, or the preset with this config."""
        return self._source if isinstance(self._source, str) else retriever_name(self._source)

    def on(self, collection: str) -> Retriever:
        """Return the retriever with its settings for a collection."""
        config = self.config.on(collection)
        return self if config == self.config else Retriever(config, device=self.device)

    @property
    def modes(self) -> tuple[str, ...]:
        """The scores that it computes. An index ranks by `default_mode` of the config, or else by the last of these."""
        return self.config.modes

    @cached_property
    def encoder(self) -> Encoder:
        """The loaded model; ValueError if it cannot be loaded or the retriever (BM25) has none."""
        from diffretriever.encoders import load_encoder

        if not is_neural(self.config):
            raise ValueError(f"{self.name} has no encoder: it matches terms")
        return load_encoder(self.config, self.device)

    @property
    def loaded(self) -> Encoder | None:
        """The model, if it is loaded."""
        return self.__dict__.get("encoder")

    def encode_queries(self, queries: str | Sequence[str], budget: int | None = None) -> Representations:
        """Encode queries into vectors and, if the retriever has a sparse side, term weights.

        Args:
            queries: a string, or a list of N strings.
            budget: number of slots of each query, K_q. Default: the retriever's.

        Returns:
            Vectors, float16 [M, H], with offsets, int64 [N + 1], and term weights.

        Raises:
            ValueError: the retriever has no encoder (BM25) or no slots, or a query encodes to NaN or infinity.

        Example:
            >>> encoded = dr.Retriever("diffretriever-minilm").encode_queries(["moon and sea", "roses"], budget=4)
            >>> encoded.vectors_MH.shape, encoded.offsets.tolist()
            ((8, 384), [0, 4, 8])
        """
        texts = texts_of(queries)
        if budget is not None and not self.config.has_query_budget:
            raise ValueError(f"{self.name} has no slots, so queries have no budget")
        return self.encoder.encode_queries(texts, None if budget is None else [budget] * len(texts))

    def encode_passages(self, texts: str | Sequence[str], titles: str | Sequence[str] | None = None) -> Representations:
        """Encode N passages, optionally with N titles; returns as `encode_queries`.

        Raises:
            ValueError: the numbers of texts and titles differ, or the retriever has no encoder.
        """
        passages = texts_of(texts)
        named = [""] * len(passages) if titles is None else texts_of(titles)
        if len(named) != len(passages):
            raise ValueError(f"{len(passages)} texts but {len(named)} titles: pass one title per text, '' for none")
        return self.encoder.encode_passages(named, passages)

    def __repr__(self) -> str:
        return f"Retriever('{self.name}', modes={','.join(self.modes)})"


def _config(
    retriever: str | RetrieverConfig, backbone: str | None, adapter: str | None, budget: str | Budget | None
) -> RetrieverConfig:
    if isinstance(retriever, str):
        return load_retriever(retriever, backbone, _BUDGET.validate_python(budget), adapter)
    if budget is not None:
        raise ValueError("budget: set it in the config")
    return retriever if backbone is None and adapter is None else with_weights(retriever, backbone, adapter)


def texts_of(texts: str | Sequence[str]) -> list[str]:
    """Return texts as a list; raise ValueError if an item is not a string."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"text number {number} is a {type(text).__name__}, not a string")
    return listed
