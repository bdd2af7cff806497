"""Random indexing: a text is the mean of random vectors, one for each entry of a tokenizer's vocabulary.

A baseline without weights (Kanerva, Kristofersson and Holst 2000), and an example of an encoder in its own package.

Legend: B texts of a batch, L tokens of a text, H size of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from diffretriever.backbones.loader import load_vocabulary
from diffretriever.encoders.base import Encoder, ModelFacts
from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer
from diffretriever.schemas.retriever import BackboneConfig, InstalledRetriever, Side
from diffretriever.vectors.representations import Representations


class RandomIndexing(InstalledRetriever):
    """The config: what vectors depend on. `method` is PACKAGE:NAME, as in pyproject.toml."""

    method: Literal["diffretriever-random-indexing:static"] = "diffretriever-random-indexing:static"
    backbone: BackboneConfig = BackboneConfig(source="minilm")
    """Whose tokenizer is used."""
    size: PositiveInt = 256
    """H."""
    seed: NonNegativeInt = 0
    """Of the random vectors."""


class RandomIndexingPreparer(Preparer):
    """The CPU half: texts to token ids. It runs where no model is loaded."""

    def default_slots(self, side: Side) -> int:
        """There are no slots."""
        return 0

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise; a text of nothing is a pad token, as every text has a vector."""
        limit = self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens
        rows = self.vocabulary.tokenise(texts, [limit] * len(texts))
        nothing = [self.vocabulary.pad_token_id]
        return [PreparedText(np.array(row or nothing, np.int32), 0, NO_IDS, NO_IDS, len(row)) for row in rows]


class RandomIndexingEncoder(Encoder):
    """The other half: token ids to vectors."""

    config_class: ClassVar[type[InstalledRetriever]] = RandomIndexing
    config: RandomIndexing

    @classmethod
    def load_preparer(cls, config: RandomIndexing) -> RandomIndexingPreparer:
        """Read the tokenizer."""
        place = config.backbone
        return RandomIndexingPreparer(load_vocabulary(place.source, revision=place.revision), config.text)

    @classmethod
    def load(cls, config: RandomIndexing, device: str) -> Self:
        """Read the tokenizer; vectors are made on the CPU, whatever the device."""
        preparer = cls.load_preparer(config)
        facts = ModelFacts(
            device=torch.device("cpu"),
            dtype="float32",
            hidden_size=config.size,
            vocab_size=None,
            # In place of a digest of weights: another text wherever the code gives other vectors.
            weights="random-indexing 1",
            tokenizer=preparer.vocabulary.digest(),
        )
        return cls(config, preparer, facts)

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """Represent one batch, each text by itself."""
        vectors_BH = np.stack([self._vector(text.input_ids) for text in texts]).astype(np.float16)
        return Representations.of_vectors(vectors_BH, [1] * len(texts), [text.n_tokens for text in texts])

    def _vector(self, ids_L: np.ndarray) -> np.ndarray:
        mean_H = np.mean([self._of_token(token) for token in ids_L.tolist()], axis=0)
        return mean_H / np.linalg.norm(mean_H)

    def _of_token(self, token: int) -> np.ndarray:
        return np.random.default_rng([self.config.seed, token]).standard_normal(self.config.size)
