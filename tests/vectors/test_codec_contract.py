"""The codec encodes, decodes, scores and serialises vectors."""

from __future__ import annotations

from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch

from diffretriever.schemas.codec import Bits
from diffretriever.vectors.maxsim import maxsim
from diffretriever.vectors.product import Codec

HIDDEN, N = 32, 3000


def unit_vectors(n: int, seed: int) -> np.ndarray:
    """Unit vectors around twenty directions, wider along some axes than along others, as slots are."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, HIDDEN))
    spread = np.linspace(1.5, 0.1, HIDDEN)
    vectors = centres[rng.integers(0, 20, n)] + spread * rng.normal(size=(n, HIDDEN))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


SAMPLE, OTHERS = unit_vectors(N, 0), unit_vectors(500, 1)


@cache
def trained(bits: Bits) -> Codec:
    return Codec.train(bits, SAMPLE)


@pytest.fixture(params=get_args(Bits))
def codec(request: pytest.FixtureRequest) -> Codec:
    return trained(request.param)


def test_decoded_vectors_are_unit_vectors_near_their_originals(codec: Codec) -> None:
    decoded = codec.decode(codec.encode(OTHERS))
    assert decoded.dtype == np.float32
    assert decoded.shape == OTHERS.shape
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, atol=1e-5)
    cosines = (decoded * OTHERS).sum(axis=1)
    assert cosines.mean() > {1: 0.85, 2: 0.93, 4: 0.98}[codec.config.bits]


def test_a_vector_decodes_to_the_same_bits_in_any_batch(codec: Codec) -> None:
    codes = codec.encode(OTHERS)
    together = codec.decode(codes)
    for rows in (slice(0, 1), slice(7, 10), slice(123, 256), slice(499, 500)):
        assert np.array_equal(codec.decode(codes[rows]), together[rows])
    assert np.array_equal(codec.decode(codes[::-1])[::-1], together)


@pytest.mark.parametrize("counts", [[3] * 40, [0, 2, 0, 0, 7, 1, 16, 0], [0], [], [9000]])
@pytest.mark.parametrize("query_counts", [[4] * 20, [1, 0, 5, 2], [0], []])
def test_scores_equal_those_of_the_decoded_vectors(codec: Codec, counts: list[int], query_counts: list[int]) -> None:
    offsets, query_offsets = (np.concatenate([[0], np.cumsum(c)]).astype(np.int64) for c in (counts, query_counts))
    rng = np.random.default_rng(2)
    codes = codec.encode(OTHERS)[rng.integers(0, len(OTHERS), offsets[-1])]
    queries = unit_vectors(int(query_offsets[-1]), 3)
    expected = maxsim(torch.from_numpy(queries), query_offsets, torch.from_numpy(codec.decode(codes)), offsets)
    scores = codec.maxsim(queries, query_offsets, codes, offsets)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)


def test_a_loaded_codec_equals_the_saved_one(codec: Codec) -> None:
    loaded = Codec.from_bytes(codec.to_bytes())
    assert (loaded.config, loaded.digest) == (codec.config, codec.digest)
    codes = codec.encode(OTHERS)
    assert np.array_equal(loaded.encode(OTHERS), codes)
    assert np.array_equal(loaded.decode(codes), codec.decode(codes))


def test_the_same_sample_and_seed_give_the_same_codec() -> None:
    assert Codec.train(2, SAMPLE).digest == trained(2).digest
    assert Codec.train(2, SAMPLE, seed=1).digest != trained(2).digest
    assert Codec.train(2, SAMPLE[::2]).digest != trained(2).digest


@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_sample_smaller_than_a_codebook_suffices(n: int) -> None:
    for bits in get_args(Bits):
        codec = Codec.train(bits, SAMPLE[:n])
        decoded = codec.decode(codec.encode(SAMPLE[:n]))
        assert np.isfinite(decoded).all()
        assert np.isfinite(codec.maxsim(OTHERS[:3], np.array([0, 3]), codec.encode(OTHERS), np.array([0, 500]))).all()


def test_a_hidden_size_that_does_not_fill_bytes_is_rejected() -> None:
    with pytest.raises(ValueError, match="multiple of 8, and it is 12"):
        Codec.train(2, SAMPLE[:, :12])


@pytest.mark.parametrize("data", [b"", b"text that is no codec", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_other_data_than_a_codec_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="this is not a codec"):
        Codec.from_bytes(data)
