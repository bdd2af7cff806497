"""Query likelihoods against a slow second computation, and what every reranker promises."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from diffretriever.backbones import load_backbone
from diffretriever.backbones.base import BackboneOutput
from diffretriever.collections import Passage
from diffretriever.rerank import load_reranker
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.schemas.rerank import LikelihoodReranker
from diffretriever.schemas.retriever import BackboneConfig
from tests.rerank.rerank_cases import PASSAGES, QUERY, SEQUENCES, FolderOf, MakeReranker, SlowLikelihood

ESTIMATORS = ("one-pass", "monte-carlo", "pseudo-likelihood")


def slow(family: str, reranker: QueryLikelihood, query: str = QUERY) -> list[SlowLikelihood]:
    return [SlowLikelihood(family, reranker, query, passage) for passage in PASSAGES]


def any_order(pair: SlowLikelihood) -> float:
    """The log-likelihood that the chain rule gives, averaged over all orders of the query's tokens."""
    known = cache(lambda hidden, token: pair.log_p(hidden, [token]))
    orders = list(permutations(range(len(pair.query))))
    chains = [known(frozenset(order[k:]), token) for order in orders for k, token in enumerate(order)]
    return sum(chains) / len(orders)


@pytest.mark.parametrize("read_offset", [0, -1])
def test_one_pass_is_the_likelihood_of_all_tokens_at_once(
    family: str, read_offset: int, make_reranker: MakeReranker
) -> None:
    reranker = make_reranker(family, read_offset=read_offset, normalise_length=False)
    every = range(len(slow(family, reranker)[0].query))
    expected = [pair.log_p(every, every) for pair in slow(family, reranker)]
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), expected, rtol=1e-5)


@pytest.mark.parametrize("read_offset", [0, -1])
def test_pseudo_likelihood_judges_each_token_with_the_others_shown(
    family: str, read_offset: int, make_reranker: MakeReranker
) -> None:
    reranker = make_reranker(family, estimator="pseudo-likelihood", read_offset=read_offset, normalise_length=False)
    expected = [sum(pair.log_p([i], [i]) for i in range(len(pair.query))) for pair in slow(family, reranker)]
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), expected, rtol=1e-5)


def test_monte_carlo_has_the_any_order_likelihood_as_its_mean(family: str, make_reranker: MakeReranker) -> None:
    reranker = make_reranker(family, estimator="monte-carlo", n_samples=60_000, normalise_length=False)
    query = "winter honey"
    expected = [any_order(pair) for pair in slow(family, reranker, query)]
    np.testing.assert_allclose(reranker.score(query, PASSAGES), expected, rtol=3e-3)


def test_length_normalisation_divides_by_the_querys_tokens(family: str, make_reranker: MakeReranker) -> None:
    total = make_reranker(family, normalise_length=False)
    tokens = len(slow(family, total)[0].query)
    np.testing.assert_allclose(make_reranker(family).score(QUERY, PASSAGES) * tokens, total.score(QUERY, PASSAGES))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_score_does_not_depend_on_its_batch(family: str, estimator: str, make_reranker: MakeReranker) -> None:
    reranker = make_reranker(family, estimator=estimator, n_samples=5)
    together = reranker.score(QUERY, PASSAGES)
    alone = [reranker.score(QUERY, [passage])[0] for passage in PASSAGES]
    np.testing.assert_allclose(alone, together, rtol=1e-5)
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES[::-1])[::-1], together, rtol=1e-5)
    reranker.tokens_per_batch = 1
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), together, rtol=1e-5)
    assert np.ptp(together) > 1e-3, "the passages matter"


def test_a_second_call_gives_the_same_bits(family: str, make_reranker: MakeReranker) -> None:
    scores = [make_reranker(family, estimator="monte-carlo").score(QUERY, PASSAGES).tobytes() for _ in range(2)]
    assert scores[0] == scores[1]


def test_only_the_passage_makes_room(make_reranker: MakeReranker) -> None:
    reranker = make_reranker("bert", max_passage_tokens=10_000)
    framed = reranker._framing(QUERY, [Passage("long", "", "honey " * 50_000)])
    pair = SlowLikelihood("bert", reranker, QUERY, Passage("none", "", "honey"))
    left, right = (
        reranker.backbone.vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in SEQUENCES["bert"][:2]
    )
    context = framed.contexts[0].tolist()
    assert len(context) + len(framed.query_ids) + len(framed.tail) == reranker.backbone.max_length
    assert (context[: len(left)], context[-len(right) :]) == (left, right)
    assert framed.query_ids.tolist() == pair.query
    assert framed.tail.tolist() == pair.tail
    assert np.isfinite(reranker.score(QUERY, [Passage("long", "", "honey " * 50_000)])).all()


def test_texts_are_cut_to_their_limits(family: str, make_reranker: MakeReranker) -> None:
    reranker = make_reranker(family, max_query_tokens=2, max_passage_tokens=5)
    whole = make_reranker(family)._framing(QUERY, PASSAGES)
    framed = reranker._framing(QUERY, PASSAGES)
    assert framed.query_ids.tolist() == whole.query_ids.tolist()[:2]
    framing = len(framed.contexts[-1]) - 5
    assert [len(c) - framing for c in framed.contexts] == [min(5, len(c) - framing) for c in whole.contexts]
    assert len(reranker.score(QUERY, PASSAGES)) == len(PASSAGES)


def test_no_room_for_a_passage_is_an_error(make_reranker: MakeReranker) -> None:
    with pytest.raises(ValueError, match=r"no room for a passage.*max_query_tokens"):
        make_reranker("bert", max_query_tokens=600).score("honey " * 600, PASSAGES)


def test_special_tokens_of_a_text_are_text(family: str, make_reranker: MakeReranker) -> None:
    reranker = make_reranker(family)
    framed = reranker._framing("<|mask|> [MASK] <|mdm_mask|>", PASSAGES)
    mask = reranker.backbone.vocabulary.mask_token_id
    assert all(mask not in ids.tolist() for ids in [framed.query_ids, *framed.contexts])


def test_nothing_to_score(family: str, make_reranker: MakeReranker) -> None:
    reranker = make_reranker(family)
    assert reranker.score(QUERY, []).shape == (0,)
    np.testing.assert_array_equal(reranker.score("", PASSAGES), np.zeros(len(PASSAGES)))


def test_a_backbone_without_masks_is_refused(folder_of: FolderOf) -> None:
    place = BackboneConfig(source=str(folder_of("qwen2")), dtype="float32")
    with pytest.raises(ValueError, match="no mask token"):
        load_reranker(LikelihoodReranker(backbone=place), "cpu")


def test_a_score_that_is_no_number_names_the_passage(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    place = BackboneConfig(source=str(folder_of("llada")), dtype="float32")
    reranker = QueryLikelihood(LikelihoodReranker(backbone=place), load_backbone(place.source, device="cpu"))
    forward = reranker.backbone.forward

    def broken(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, **options: Any) -> BackboneOutput:
        output = forward(ids, mask, positions, **options)
        longest = mask.sum(1) == mask.sum(1).max()
        return output._replace(logits=torch.where(longest[:, None, None], torch.nan, output.logits))

    monkeypatch.setattr(reranker.backbone, "forward", broken)
    with pytest.raises(ValueError, match="passage 'p5' scores nan"):
        reranker.score(QUERY, PASSAGES)
