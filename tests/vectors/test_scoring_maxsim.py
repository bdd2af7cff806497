from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.vectors import maxsim as module
from diffretriever.vectors.maxsim import FP32_ROUNDING, Reduction, exact_scores, maxsim


def offsets_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def texts(counts: list[int], seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(counts), 8, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1).to(dtype), offsets_of(counts)


def maxsim_reference(
    queries: torch.Tensor,
    q_offsets: np.ndarray,
    passages: torch.Tensor,
    p_offsets: np.ndarray,
    reduction: Reduction,
) -> torch.Tensor:
    """Eq. 2 as it is printed: one query, one passage, one vector at a time."""
    scores = torch.zeros(len(q_offsets) - 1, len(p_offsets) - 1)
    for q in range(scores.shape[0]):
        for p in range(scores.shape[1]):
            ours = passages[p_offsets[p] : p_offsets[p + 1]].float()
            if len(ours) == 0:
                scores[q, p] = -torch.inf
                continue
            best = [max(float(v.float() @ u) for u in ours) for v in queries[q_offsets[q] : q_offsets[q + 1]]]
            if reduction == "sum-floored":
                scores[q, p] = sum(max(0.0, b) for b in best)
            else:
                scores[q, p] = sum(best) / len(best) if best else 0.0
    return scores


counts_lists = st.one_of(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.tuples(st.integers(1, 4), st.integers(1, 5)).map(lambda pair: [pair[0]] * pair[1]),
)


@settings(deadline=None, max_examples=150)
@given(
    queries=counts_lists,
    passages=counts_lists,
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    reduction=st.sampled_from(get_args(Reduction)),
    block=st.sampled_from([1, 7, 1 << 26]),
)
def test_maxsim_equals_a_double_loop(
    queries: list[int], passages: list[int], seed: int, dtype: torch.dtype, reduction: Reduction, block: int
) -> None:
    sides = (*texts(queries, seed, dtype), *texts(passages, seed + 1, dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_CELLS", block)
        scores = maxsim(*sides, reduction=reduction)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, maxsim_reference(*sides, reduction), atol=1e-5, rtol=1e-5)


def test_maxsim_equals_scores_by_hand() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    passages = torch.tensor([[0.6, 0.8], [1.0, 0.0], [-1.0, 0.0]])
    offsets = np.array([0, 2, 3])
    mean = maxsim(queries, np.array([0, 2]), passages, offsets)
    torch.testing.assert_close(mean, torch.tensor([[0.9, -0.5]]))
    floored = maxsim(queries, np.array([0, 2]), passages, offsets, reduction="sum-floored")
    torch.testing.assert_close(floored, torch.tensor([[1.8, 0.0]]))


def test_maxsim_is_fp32_under_autocast() -> None:
    sides = (*texts([4, 2], seed=0), *texts([3, 5], seed=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = maxsim(*sides)
    assert torch.equal(inside, maxsim(*sides))


def test_legacy_precision_causes_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(64, generator=generator)
    near = torch.nn.functional.normalize(centre + 0.4 * torch.randn(400, 64, generator=generator), dim=1)
    query, offsets = torch.nn.functional.normalize(centre[None], dim=1), np.arange(401)
    exact = maxsim(query, np.array([0, 1]), near, offsets)
    legacy = maxsim(query, np.array([0, 1]), near, offsets, score_dtype="bfloat16-legacy")
    assert legacy.dtype == torch.float32
    assert len(exact.unique()) > 350
    assert len(legacy.unique()) < 40
    torch.testing.assert_close(legacy, exact, atol=0.02, rtol=0)


@pytest.mark.parametrize("passages", [[2, 2], [1, 3]])
def test_gradients_reach_only_the_matched_vectors(passages: list[int]) -> None:
    (query, q_offsets), (passage, p_offsets) = texts([2], seed=0), texts(passages, seed=1)
    query.requires_grad_()
    passage.requires_grad_()
    maxsim(query, q_offsets, passage, p_offsets).sum().backward()
    best = (query @ passage.T).detach().split(passages, dim=1)
    rows = {int(b.argmax(1)[i]) + int(p_offsets[p]) for p, b in enumerate(best) for i in range(2)}
    assert passage.grad is not None
    assert set(passage.grad.abs().sum(1).nonzero().flatten().tolist()) == rows
    assert query.grad is not None
    assert bool(query.grad.abs().sum() > 0)


def test_different_hidden_sizes_are_rejected() -> None:
    query, offsets = texts([1], seed=0)
    with pytest.raises(ValueError, match="8 and 4 dimensions"):
        maxsim(query, offsets, query[:, :4], offsets)


@pytest.mark.parametrize("hidden_size", [1, 64, 100, 384, 3584])
def test_a_pair_has_the_same_score_in_any_batch(hidden_size: int) -> None:
    rng = np.random.default_rng(hidden_size)
    offsets = np.cumsum([0, *rng.integers(0, 9, 40)])
    stored_NH = rng.standard_normal((offsets[-1], hidden_size)).astype(np.float16)
    query_MH = rng.standard_normal((5, hidden_size)).astype(np.float32)
    chosen_C = np.flatnonzero(rng.random(40) < 0.7)
    scores_C = exact_scores(query_MH, stored_NH, offsets, chosen_C)
    assert np.isneginf(scores_C).any(), "one of the passages has no vectors"
    alone = [
        exact_scores(query_MH, stored_NH[a:b], np.array([0, b - a]), np.array([0]))[0] for a, b in pairwise(offsets)
    ]
    np.testing.assert_array_equal(scores_C, np.array(alone)[chosen_C])
    widened_C = exact_scores(query_MH, stored_NH.astype(np.float32), offsets, chosen_C)
    np.testing.assert_allclose(scores_C, widened_C, rtol=0, atol=FP32_ROUNDING * hidden_size)
