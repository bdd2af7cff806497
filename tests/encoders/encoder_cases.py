"""The encoders under test, their texts, and comparisons of results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from diffretriever.backbones.slot_layers import SlotLayers, attach_slot_layers
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, Bm25Retriever, NeuralRetriever
from diffretriever.vectors.representations import Representations
from tests.encoders.example_package import METHOD

_PREFIXES = {"append_eos": True, "query_prefix": "query: ", "passage_prefix": "passage: "}
_REPLLAMA = {"pooling": "last", **_PREFIXES}
PARTS = {"readout": "pooling"}
"""The fields of masked retrievers whose slots pool their own parts of the text."""
_NESTED = {"nested_slots": True, "prompt": {"variant": "few"}, "tail_length": 0}
CASES: dict[str, dict[str, Any]] = {
    "masked-dream": {"budget": "q2p3"},
    "masked-dream-2step": {"budget": "q2p3", "steps": 2},
    "masked-llada-stop": {"budget": "q2p3", "stop_truncation": "special"},
    "masked-llada-parts": {"budget": "q3p5", **PARTS},
    "masked-bert-pooling": {"budget": "q2p3", "readout": "pooling", **_NESTED},
    "masked-modernbert-nested": {"budget": "q2p3", **_NESTED},
    "masked-minilm-trained": {"preset": "diffretriever-minilm"},
    "pooled-bert": {},
    "pooled-llada": {},
    "pooled-qwen2-last": _REPLLAMA,
    "generated-qwen2-single": {},
    "generated-llama3": {"max_tokens": 5, "stop": "cap-then-cut"},
    "tokens-qwen2": {"mean_share": 0.5, **_PREFIXES},
    "tokens-modernbert-clusters": {"clusters": 5, "mean_share": 0.5},
    "installed-bert": {"method": METHOD},
}
"""Encoders under test, METHOD-FAMILY and anything after: the fields of their configs, or a preset's name.

Those with another readout have random matrices for it.
"""
_PACKED = ("masked-dream-2step", "masked-llada-parts", "masked-bert-pooling", "masked-modernbert-nested")
PACKED = {
    f"{case}-packed": case for case in (*_PACKED, "pooled-qwen2-last", "generated-llama3", "tokens-modernbert-clusters")
}
"""The same with texts in one row, and the cases that they are the same as."""
CASES |= {packed: CASES[case] for packed, case in PACKED.items()}
if find_spec("sentence_transformers"):  # an extra, tested where it is installed
    CASES["library-bert"] = {"query_prompt": "query: ", "pool_prompt": False}
    CASES["library-qwen2"] = {"passage_prompt": "passage: ", "append_eos": True}
MASKED = tuple(case for case in CASES if case.startswith("masked"))

# Words that are single entries of the random checkpoints' small vocabularies, so that texts have impacts.
WORDS = ("honey", "water", "winter", "summer", "river", "copper", "query", "passage", "word")
TEXTS = (
    "honey bees store water in winter",
    "A river of copper: 'water', honey and sand!",
    "",
    " \t\n ",
    "river",
    "winter\x00summer \x00",
    "🐝 honey 蜂蜜 עברית مرحبا e\u0301te\u0301 \u200d\ufeff 👩\u200d🔬",
    " ".join(WORDS * 5),
)
HUGE = " ".join(WORDS[i % len(WORDS)] for i in range(50_000))

FolderOf = Callable[[str], Path]
EncoderT_co = TypeVar("EncoderT_co", bound=Encoder, covariant=True)


class Make(Protocol[EncoderT_co]):
    """Makes an encoder over a backbone; the config's other fields are given by name."""

    def __call__(self, backbone: str, **fields: Any) -> EncoderT_co: ...


class Impacts(NamedTuple):
    ids: np.ndarray
    weights: np.ndarray


def case_config(case: str, folder_of: FolderOf) -> NeuralRetriever:
    fields = dict(CASES[case])
    if preset := fields.pop("preset", None):
        config = load_retriever(preset)
        assert not isinstance(config, Bm25Retriever)
        return config.model_copy(update={"backbone": BackboneConfig(source="minilm", dtype="float32")})
    method, family, *_ = case.split("-")
    attention = "packed" if case in PACKED else "auto"
    place = {"source": str(folder_of(family)), "dtype": "float32", "attention": attention}
    fields = {"method": method, **fields, "backbone": place}
    config = RETRIEVER_ADAPTER.validate_python(fields)
    assert not isinstance(config, Bm25Retriever)
    return config


def load_case(case: str, folder_of: FolderOf) -> Encoder:
    encoder = load_encoder(case_config(case, folder_of), "cpu")
    if isinstance(encoder, MaskedEncoder) and encoder.config.readout != "states":
        attach_slot_layers(encoder.backbone.model, readout_layers(encoder.facts.hidden_size))
    return encoder


@cache
def encoded(encoder: Encoder, budgets: tuple[int, ...] | None = None) -> Representations:
    """TEXTS as an encoder encodes queries, once for all tests: neither it nor the encoder is to be changed."""
    return encoder.encode_queries(TEXTS, budgets)


def readout_layers(hidden_size: int) -> SlotLayers:
    """Return random matrices for every readout."""
    generator = torch.Generator().manual_seed(1)
    residual_HH, attention_HH = torch.randn(2, hidden_size, hidden_size, generator=generator)
    return SlotLayers(residual_HH=residual_HH, attention_HH=attention_HH)


def impacts(actual: Representations, row: int) -> Impacts:
    own = slice(actual.impact_offsets[row], actual.impact_offsets[row + 1])
    return Impacts(actual.impact_ids[own], actual.impact_weights[own])


def assert_close(actual: Representations, expected: Representations) -> None:
    """Equal but for the last bits, which depend on how many texts went through a matrix product together."""
    for field in ("offsets", "impact_offsets", "impact_ids", "n_tokens"):
        np.testing.assert_array_equal(getattr(actual, field), getattr(expected, field), err_msg=field)
    np.testing.assert_array_equal(actual.slot_tokens, expected.slot_tokens)
    np.testing.assert_allclose(actual.impact_weights, expected.impact_weights, atol=1e-4, rtol=0)
    np.testing.assert_allclose(
        actual.vectors_MH.astype(np.float32), expected.vectors_MH.astype(np.float32), atol=1e-3, rtol=0
    )


def assert_identical(actual: Representations, expected: Representations) -> None:
    for field in Representations.__dataclass_fields__:
        ours, theirs = getattr(actual, field), getattr(expected, field)
        assert ours.dtype == theirs.dtype, field
        assert ours.shape == theirs.shape, field
        assert ours.tobytes() == theirs.tobytes(), field


def sequences(encoder: Encoder, texts: list[str], **kwargs: Any) -> list[list[int]]:
    return [text.input_ids.tolist() for text in encoder.preparer.prepare_queries(texts, **kwargs)]
