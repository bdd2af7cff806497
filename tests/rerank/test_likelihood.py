"""Query likelihoods equal a slow computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diffretriever.backbones.base import BackboneOutput
from diffretriever.backbones.loader import load_backbone
from diffretriever.collections import Passage
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.schemas.rerank import QueryLikelihoodConfig
from diffretriever.schemas.retriever import BackboneConfig
from tests.rerank.rerank_cases import PASSAGES, QUERY, SEQUENCES, FolderOf, MakeReranker, SlowLikelihood


@pytest.mark.parametrize("read_offset", [0, -1])
def test_the_score_is_the_mean_log_probability_of_all_tokens_at_once(
    family: str, read_offset: int, make_reranker: MakeReranker
) -> None:
    reranker = make_reranker(family, read_offset=read_offset)
    pairs = [SlowLikelihood(family, reranker, QUERY, passage) for passage in PASSAGES]
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), [pair.mean_log_p() for pair in pairs], rtol=1e-5)


def test_a_score_does_not_depend_on_its_batch(make_reranker: MakeReranker) -> None:
    reranker = make_reranker("llada")
    together = reranker.score(QUERY, PASSAGES)
    alone = [reranker.score(QUERY, [passage])[0] for passage in PASSAGES]
    np.testing.assert_allclose(alone, together, rtol=1e-5)
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES[::-1])[::-1], together, rtol=1e-5)
    reranker.tokens_per_batch = 1
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), together, rtol=1e-5)
    assert np.ptp(together) > 1e-3, "the passages matter"


def test_only_the_passage_is_truncated(make_reranker: MakeReranker) -> None:
    reranker = make_reranker("bert", max_passage_tokens=10_000)
    framed = reranker.framed(QUERY, [Passage("long", "", "honey " * 50_000)])
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
    with pytest.raises(ValueError, match=r"no tokens left for a passage.*max_query_tokens"):
        make_reranker("bert", max_query_tokens=600).score("honey " * 600, PASSAGES)
    assert np.isfinite(reranker.score(QUERY, [Passage("long", "", "honey " * 50_000)])).all()


def test_nothing_to_score(make_reranker: MakeReranker) -> None:
    reranker = make_reranker("bert")
    assert reranker.score(QUERY, []).shape == (0,)
    np.testing.assert_array_equal(reranker.score("", PASSAGES), np.zeros(len(PASSAGES)))


def test_a_backbone_without_masks_is_refused(folder_of: FolderOf) -> None:
    place = BackboneConfig(source=str(folder_of("qwen2")), dtype="float32")
    with pytest.raises(ValueError, match="no mask token"):
        QueryLikelihood.load(QueryLikelihoodConfig(backbone=place), "cpu")


def test_a_score_that_is_no_number_names_the_passage(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    place = BackboneConfig(source=str(folder_of("llada")), dtype="float32")
    reranker = QueryLikelihood(QueryLikelihoodConfig(backbone=place), load_backbone(place.source, device="cpu"))
    forward = reranker.backbone.forward

    def broken(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, **options: Any) -> BackboneOutput:
        output = forward(ids, mask, positions, **options)
        longest = mask.sum(1) == mask.sum(1).max()
        return output._replace(logits=torch.where(longest[:, None, None], torch.nan, output.logits))

    monkeypatch.setattr(reranker.backbone, "forward", broken)
    with pytest.raises(ValueError, match="passage 'p5' scores nan"):
        reranker.score(QUERY, PASSAGES)
