"""One vector per token: states, mean share, clusters and limits.

Legend: L tokens of a text, N vectors to be clustered, C clusters, M vectors of all texts, H hidden size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.encoders.readout import unit
from diffretriever.encoders.tokens import TokensEncoder, clustered
from diffretriever.schemas.retriever import TextConfig
from diffretriever.vectors.representations import Representations, not_finite
from tests.encoders.encoder_cases import TEXTS, Make

LONG = TEXTS[-1]


def passages(encoder: TokensEncoder | PooledEncoder, *texts: str) -> Representations:
    return encoder.encode_passages([""] * len(texts), texts)


def states_of(encoder: TokensEncoder, text: str) -> torch.Tensor:
    ids = torch.tensor([encoder.preparer.prepare_passages([""], [text])[0].input_ids.tolist()])
    with torch.inference_mode():
        hidden, _ = encoder.backbone.forward(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None], ids[0, :0])
    return hidden[0]


def assert_near(actual: np.ndarray, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(actual.astype(np.float32), expected.numpy(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", ["bert", "qwen2"])
def test_a_vector_for_each_token(family: str, make_tokens: Make[TokensEncoder]) -> None:
    encoder = make_tokens(family)
    for text in TEXTS:
        states_LH = states_of(encoder, text)
        assert_near(passages(encoder, text).vectors_MH, unit(states_LH))
    tokenizer = encoder.preparer.vocabulary.tokenizer
    own = tokenizer(LONG)["input_ids"]
    assert np.diff(passages(encoder, LONG).offsets).tolist() == [len(own)], "special tokens have vectors"


@pytest.mark.parametrize("clusters", [None, 3])
def test_mean_share(clusters: int | None, make_tokens: Make[TokensEncoder], make_pooled: Make[PooledEncoder]) -> None:
    text = TextConfig(length_semantics="total")
    plain, mixed = (make_tokens("bert", clusters=clusters, mean_share=share) for share in (0.0, 0.25))
    mean_MH = passages(make_pooled("bert", text=text), *TEXTS).vectors_MH.astype(np.float32)
    before, after = passages(plain, *TEXTS), passages(mixed, *TEXTS)
    np.testing.assert_array_equal(after.offsets, before.offsets)
    owner_M = np.repeat(np.arange(len(TEXTS)), np.diff(before.offsets))
    expected_MH = unit(torch.from_numpy(0.25 * mean_MH[owner_M] + 0.75 * before.vectors_MH.astype(np.float32)))
    assert_near(after.vectors_MH, expected_MH)
    query = mixed.encode_queries(["honey"]).vectors_MH
    assert np.abs(query - plain.encode_queries(["honey"]).vectors_MH).max() > 1e-2, "queries have it too"


def test_passages_are_clustered_and_queries_are_not(make_tokens: Make[TokensEncoder]) -> None:
    plain, few = make_tokens("bert"), make_tokens("bert", clusters=4)
    whole, stored = passages(plain, *TEXTS), passages(few, *TEXTS)
    lengths = np.diff(whole.offsets)
    assert lengths.max() > 4
    np.testing.assert_array_equal(np.diff(stored.offsets), np.minimum(lengths, 4))
    queries = few.encode_queries([LONG])
    np.testing.assert_array_equal(queries.vectors_MH, plain.encode_queries([LONG]).vectors_MH)
    assert (few.config.max_vectors("query"), few.config.max_vectors("passage")) == (512, 4)
    row = int(lengths.argmax())
    tokens_NH = torch.from_numpy(whole.vectors_MH[whole.offsets[row] : whole.offsets[row + 1]].astype(np.float32))
    own_CH = stored.vectors_MH[stored.offsets[row] : stored.offsets[row + 1]]
    assert_near(own_CH, unit(clustered(tokens_NH, 4)))


def test_what_is_not_finite_is_left_to_be_refused(make_tokens: Make[TokensEncoder]) -> None:
    encoder = make_tokens("bert", clusters=2)
    read = encoder._read

    def damaged(texts: Any) -> Any:
        states_BLH, is_text_BL = read(texts)
        states_BLH[-1, 1] = torch.nan
        return states_BLH, is_text_BL

    encoder._read = damaged  # type: ignore[method-assign]
    actual = encoder.encode(encoder.preparer.prepare_passages(["", ""], [LONG, LONG]))
    assert np.diff(actual.offsets).tolist() == [2, 1]
    assert not_finite(actual).tolist() == [1]
