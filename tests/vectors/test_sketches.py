"""Products of sketches against sums over digits."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.vectors.sketches import DIRECTIONS, SketchedQuery, Sketches, SketchHits, main_directions

RNG = np.random.default_rng(0)


def digits_of(vectors: np.ndarray, steps: np.ndarray, levels: int) -> np.ndarray:
    return np.clip(np.floor(vectors / steps + levels // 2), 0, levels - 1)


def found_by(vectors: np.ndarray, query: np.ndarray, least: float = -np.inf) -> SketchHits:
    return Sketches.of(vectors).search(SketchedQuery.of(query), least, np.ones(len(vectors), bool))


def products(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    return found_by(vectors, query).products_C


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_popcount_products_equal_sums_over_digits(count: int) -> None:
    vectors = RNG.standard_normal((count, DIRECTIONS)).astype(np.float32)
    query = RNG.standard_normal(DIRECTIONS).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1)
    digits = digits_of(vectors, 0.95 * lengths[:, None] / np.sqrt(DIRECTIONS), 4)
    asked = digits_of(query, np.abs(query).max() / 7.5, 16)
    factors = lengths**2 / ((digits - 1.5) * vectors).sum(axis=1)
    expected = np.abs(query).max() / 7.5 * factors * ((digits - 1.5) @ (asked - 7.5))
    np.testing.assert_allclose(products(vectors, query), expected, rtol=1e-3, atol=1e-3)
    signs = np.where(digits >= 2, 1.137, -1.137)
    expected = np.abs(query).max() / 7.5 * factors * (signs @ (asked - 7.5))
    np.testing.assert_allclose(found_by(vectors, query).by_signs_C, expected, rtol=1e-3, atol=1e-3)


def test_vectors_below_the_threshold_or_deleted_are_skipped() -> None:
    vectors = RNG.standard_normal((100, DIRECTIONS)).astype(np.float32)
    query, live = RNG.standard_normal(DIRECTIONS).astype(np.float32), RNG.random(100) < 0.5
    every = found_by(vectors, query)
    hits = Sketches.of(vectors).search(SketchedQuery.of(query), 1.0, live)
    kept = np.flatnonzero((every.by_signs_C >= 1.0) & live)
    assert 0 < len(kept) < live.sum()
    np.testing.assert_array_equal(hits.numbers_C, kept)
    np.testing.assert_array_equal(hits.products_C, every.products_C[kept])


@pytest.mark.parametrize(("sampled", "hidden_size"), [(500, 24), (10, 24), (1, 300), (400, 384), (150, 384)])
def test_main_directions_preserve_products_of_their_sample(sampled: int, hidden_size: int) -> None:
    # As many dimensions as there are directions, whatever the space.
    inside = RNG.standard_normal((min(DIRECTIONS, hidden_size), hidden_size))
    sample = (RNG.standard_normal((sampled, len(inside))) @ inside).astype(np.float32)
    directions = main_directions(sample)
    assert directions.shape == (hidden_size, DIRECTIONS)
    assert directions.dtype == np.float32
    turned = sample @ directions
    scale = np.abs(sample @ sample.T).max()
    np.testing.assert_allclose(turned @ turned.T / scale, sample @ sample.T / scale, atol=1e-4)
    np.testing.assert_array_equal(directions, main_directions(sample))
