"""Published embedding models through sentence-transformers: one vector a text, or one a token.

The library's own modules run on our batches, so that pooling, projections and normalisation are exactly its own.

Legend: B texts of a batch, L padded length, M vectors of the batch, H size of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from diffretriever.backbones.device import resolve_device, resolve_dtype
from diffretriever.encoders.base import Encoder, ModelFacts
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_model import check_tokens, load_model
from diffretriever.encoders.library_preparer import NO_IDS, LibraryPreparer
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.encoders.tensors import offsets_of, pad_right, unit_float16
from schemas.retriever import LibraryRetriever

SINGLE = "SentenceTransformer"
"""What the library calls a model of one vector a text."""


class LibraryEncoder(Encoder):
    """A model of sentence-transformers."""

    config: LibraryRetriever
    preparer: LibraryPreparer

    def __init__(self, config: LibraryRetriever, model: Any, preparer: LibraryPreparer, weights: str) -> None:
        facts = ModelFacts(
            device=model.device,
            dtype=str(model.dtype).removeprefix("torch."),
            hidden_size=model.get_embedding_dimension(),
            vocab_size=None,
            weights=weights,
        )
        super().__init__(config, preparer, facts)
        self.model = model

    @classmethod
    def load_preparer(cls, config: LibraryRetriever) -> LibraryPreparer:
        """Read the tokenizer and the library's config files only."""
        files = LibraryFiles.open(config, weights=False)
        if config.vectors == "token":
            from diffretriever.encoders.library_tokens import TokenPreparer

            return TokenPreparer(config, files)
        kind = "ColBERT" if files.is_stanford_colbert else files.library_config.get("model_type", SINGLE)
        if kind != SINGLE:
            # The library would make another model of it, with the same weights.
            raise ValueError(f"{files.folder} is a {kind}, not a model of one vector a text")
        return LibraryPreparer(config, files)

    @classmethod
    def load(cls, config: LibraryRetriever, device: str) -> Self:
        """Load the model, and check that texts are prepared as the library would."""
        preparer = cls.load_preparer(config)
        files = LibraryFiles.open(config, weights=True)
        place = resolve_device(device)
        model = load_model(config, files, place, resolve_dtype(config.backbone.dtype, place))
        check_tokens(model, preparer, files)
        return cls(config, model, preparer, files.digest())

    def encode_batch(self, texts: Sequence[PreparedText]) -> Representations:
        """One forward pass through the library's modules."""
        vectors_MH, counts = self.vectors(texts)
        return Representations(
            vectors_MH=unit_float16(vectors_MH) if self.config.similarity == "cosine" else _float16(vectors_MH),
            offsets=offsets_of(counts),
            slot_tokens=np.full(len(vectors_MH), -1, np.int32),
            impact_ids=NO_IDS,
            impact_weights=np.zeros(0, np.float32),
            impact_offsets=np.zeros(len(texts) + 1, np.int64),
            n_tokens=np.array([text.n_tokens for text in texts], np.int32),
        )

    def vectors(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, np.ndarray]:
        """Return the library's vectors [M, H] as they are, and the number [B] that each text has of them."""
        ids_BL, real_BL = pad_right([text.input_ids for text in texts], self.preparer.vocabulary.pad_token_id)
        if self.config.vectors == "single":
            pooled_BH = self._run(texts, ids_BL, real_BL)["sentence_embedding"]
            return pooled_BH[:, : self.facts.hidden_size], np.ones(len(texts), np.int64)
        attended_BL = (torch.arange(ids_BL.shape[1]) < torch.tensor([[text.n_tokens] for text in texts])).long()
        states_BLH = self._run(texts, ids_BL, attended_BL)["token_embeddings"]
        counts = np.array([len(text.content_ids) for text in texts])
        rows_M = torch.from_numpy(np.repeat(np.arange(len(texts)), counts))
        places_M = torch.from_numpy(np.concatenate([text.content_ids for text in texts])).long()
        return states_BLH[rows_M.to(states_BLH.device), places_M.to(states_BLH.device)], counts

    def _run(self, texts: Sequence[PreparedText], ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> dict[str, Any]:
        device = self.facts.device
        features: dict[str, Any] = {"input_ids": ids_BL.to(device), "attention_mask": mask_BL.to(device)}
        left_out = {text.prefix_tokens for text in texts}
        assert len(left_out) == 1, "queries and passages do not share a batch"
        if any(left_out):
            (features["prompt_length"],) = left_out
        with torch.inference_mode():
            return self.model(features)


def _float16(vectors_MH: torch.Tensor) -> np.ndarray:
    largest = float(vectors_MH.abs().max()) if len(vectors_MH) else 0.0
    if not largest <= torch.finfo(torch.float16).max:
        raise ValueError(
            f"a vector has the component {largest:g}, which float16, the form at rest, cannot hold: "
            "use similarity: cosine"
        )
    return vectors_MH.to(torch.float16).cpu().numpy()
