"""The residual codec is ColBERTv2's, as the paper uses it (App. B.3): its bytes, its levels, its centroids.

What is stored of a vector is read here with plain numpy, as anybody could from the table.
"""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.codecs import storage_bytes, train_codec
from diffretriever.codecs.codewords import spherical_centroids
from diffretriever.codecs.residual import centroid_count
from diffretriever.schemas.codec import Bits, CodecConfig
from tests.codecs.test_codec_contract import HIDDEN, OTHERS, SAMPLE, trained

GIB = 2**30
MS_MARCO = 8_841_823
DREAM, LLADA = 3584, 4096


@pytest.mark.parametrize(
    ("hidden_size", "vectors", "gib"),
    [(DREAM, 16, "118.6"), (LLADA, 4, "33.9"), (LLADA, 1, "8.5"), (DREAM, 1, "7.4")],
)
def test_the_papers_compressed_indexes(hidden_size: int, vectors: int, gib: str) -> None:
    """Paper, table of storage and effectiveness, MS MARCO: 118, 34, 8.5 and 7.5 GiB."""
    size = storage_bytes(CodecConfig("residual", 2), hidden_size, MS_MARCO * vectors)
    assert f"{size / GIB:.1f}" == gib


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_read_with_plain_numpy(bits: Bits) -> None:
    codec = trained(CodecConfig("residual", bits))
    codes = codec.encode(OTHERS)
    ids = codes[:, :4].copy().view("<u4")[:, 0]
    numbers = (codes[:, 4:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
    vectors = codec.arrays["centroids"][ids] + codec.arrays["levels"][numbers.reshape(len(codes), HIDDEN)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, codec.decode(codes), atol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_nearest_centroid_and_the_bucket_of_each_residual(bits: Bits) -> None:
    codec = trained(CodecConfig("residual", bits))
    centroids, cuts = codec.arrays["centroids"].astype(np.float64), codec.arrays["cuts"]
    codes = codec.encode(OTHERS)
    ids = codes[:, :4].copy().view("<u4")[:, 0]
    products = OTHERS.astype(np.float64) @ centroids.T
    np.testing.assert_allclose(products[np.arange(len(ids)), ids], products.max(axis=1), atol=1e-6)
    residuals = OTHERS.astype(np.float32) - codec.arrays["centroids"][ids]
    numbers = (codes[:, 4:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
    buckets = sum((residuals > cut).astype(np.int64) for cut in cuts)
    assert np.array_equal(numbers.reshape(residuals.shape), buckets)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_levels_are_quantiles_in_the_middle_between_cuts_that_are_quantiles(bits: Bits) -> None:
    """Every level is used about equally often, by vectors that the codec was not trained on too."""
    codec = trained(CodecConfig("residual", bits))
    cuts, levels = codec.arrays["cuts"], codec.arrays["levels"]
    assert (len(cuts), len(levels)) == (2**bits - 1, 2**bits)
    assert (levels[:-1] < cuts).all()
    assert (cuts < levels[1:]).all()
    numbers = (codec.encode(OTHERS)[:, 4:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
    shares = np.bincount(numbers.reshape(-1), minlength=2**bits) / numbers.size
    np.testing.assert_allclose(shares, 2.0**-bits, rtol=0.25)


def test_how_many_centroids() -> None:
    """The largest power of two up to 16 times the root of the vectors, where the sample has four vectors for each."""
    assert centroid_count(10_000, 10_000) == 1024
    assert centroid_count(10**6, 10**6) == 8192
    assert centroid_count(MS_MARCO * 16, 10**9) == 131072
    assert centroid_count(MS_MARCO * 16, 131072) == 32768
    assert centroid_count(1, 1) == 1
    assert len(trained(CodecConfig("residual", 2)).arrays["centroids"]) == 512
    assert len(train_codec(CodecConfig("residual", 2), SAMPLE, 100).arrays["centroids"]) == 128


def test_centroids_are_unit_means_of_their_own() -> None:
    vectors = SAMPLE.astype(np.float32)
    centroids = spherical_centroids(vectors, 16, 0)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
    owners = (vectors @ centroids.T).argmax(axis=1)
    assert len(np.unique(owners)) == 16
    random = vectors[np.random.default_rng(5).choice(len(vectors), 16, replace=False)]
    assert (vectors @ centroids.T).max(axis=1).mean() > (vectors @ random.T).max(axis=1).mean() + 0.02


def test_a_centroid_that_the_codec_does_not_have() -> None:
    codec = trained(CodecConfig("residual", 2))
    codes = codec.encode(OTHERS[:3])
    codes[1, :4] = np.array([len(codec.arrays["centroids"])], "<u4").view(np.uint8)
    assert codec.readable(codes).tolist() == [True, False, True]
    with pytest.raises(ValueError, match=r"residual2 \w+ cannot have written"):
        codec.decode(codes)
    with pytest.raises(ValueError, match=r"residual2 \w+ cannot have written"):
        codec.maxsim(OTHERS[:1], np.array([0, 1]), codes, np.arange(4))
