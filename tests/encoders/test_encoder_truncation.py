"""Truncation cuts the text and nothing else, at the limit its config means."""

from __future__ import annotations

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import TextConfig
from tests.encoders.encoder_cases import HUGE, Make, sequences


def words_of(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.preparer.vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_huge_text_leaves_prompt_slots_and_tail_whole(masked: MaskedEncoder) -> None:
    (ids,) = sequences(masked, [HUGE])
    slots = masked.preparer.default_slots("query")
    left, right, after, _ = masked.preparer.frame("query", slots)
    ending = [*right, *after]
    limit = min(masked.preparer._limit("query"), masked.backbone.max_length - len(left) - len(ending))
    assert ids == [*left, *words_of(masked, HUGE[: limit * 12])[:limit], *ending]
    found = masked.encode_queries([HUGE, "river"])
    assert found.n_tokens.tolist() == [limit, 1]
    assert found.offsets.tolist() == [0, slots, 2 * slots]


@pytest.mark.parametrize("family", ["dream", "bert"])
def test_a_pooled_text_keeps_its_special_tokens(family: str, make_pooled: Make[PooledEncoder]) -> None:
    added = 2 if family == "bert" else 0
    for semantics, kept in (("text", 20), ("total", 20 - added)):
        encoder = make_pooled(family, text=TextConfig(max_query_tokens=20, length_semantics=semantics))
        (ids,) = sequences(encoder, [HUGE])
        body = ids[1:-1] if added else ids
        assert body == words_of(encoder, HUGE[:400])[:kept]
        if added:
            tokenizer = encoder.backbone.vocabulary.tokenizer
            assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


@pytest.mark.parametrize("family", ["dream", "llada", "bert"])
def test_what_the_limits_count(family: str, make_masked: Make[MaskedEncoder]) -> None:
    for semantics in ("text", "total"):
        text = TextConfig(max_query_tokens=90, max_passage_tokens=110, length_semantics=semantics)
        preparer = make_masked(family, text=text, budget=Budget(2, 5)).preparer
        query, passage = preparer.prepare_queries([HUGE])[0], preparer.prepare_passages([""], [HUGE])[0]
        after_the_prompt = len(preparer.tail)
        if semantics == "text":
            assert (query.n_tokens, passage.n_tokens) == (90, 110)
        else:
            assert len(query.input_ids) == 90 + 2 + after_the_prompt
            assert len(passage.input_ids) == 110 + 5 + after_the_prompt


def test_the_models_own_length_is_never_exceeded(
    make_masked: Make[MaskedEncoder], make_pooled: Make[PooledEncoder]
) -> None:
    text = TextConfig(max_query_tokens=5000, max_passage_tokens=5000)
    for encoder in (make_masked("bert", text=text), make_pooled("bert", text=text)):
        assert len(sequences(encoder, [HUGE])[0]) == encoder.backbone.max_length == 512
        assert len(encoder.encode_queries([HUGE])) == 1


def test_no_room_for_a_text(make_masked: Make[MaskedEncoder], make_pooled: Make[PooledEncoder]) -> None:
    short = TextConfig(max_query_tokens=2, length_semantics="total")
    for encoder in (make_masked("dream", text=short), make_pooled("bert", text=short)):
        with pytest.raises(ValueError, match="no room for the text"):
            encoder.encode_queries(["river"])
    assert make_pooled("dream", text=short).encode_queries(["river"]).n_tokens.tolist() == [1]


def test_long_blanks_are_cut_alike_in_every_batch(make_masked: Make[MaskedEncoder]) -> None:
    """Characters are cut before tokens, at a length that goes with a text's own K, not with that of others."""
    text = TextConfig(max_query_tokens=60, length_semantics="total")
    preparer = make_masked("bert", text=text).preparer
    limits = [preparer.frame("query", slots).limit for slots in (1, 3)]
    assert limits[0] > limits[1]
    blank = " " * (64 * limits[1]) + "river"
    together = [prepared.n_tokens for prepared in preparer.prepare_queries([blank, blank], [1, 3])]
    assert together == [preparer.prepare_queries([blank], [slots])[0].n_tokens for slots in (1, 3)]


def test_special_tokens_spelled_in_a_text_stay_text(
    make_masked: Make[MaskedEncoder], make_pooled: Make[PooledEncoder]
) -> None:
    spelled = "a <|im_end|> b <|mask|> c <|eot_id|> d <|mdm_mask|> e [MASK] f [SEP]"
    for family in ("dream", "llada", "bert"):
        masked, pooled = make_masked(family), make_pooled(family)
        for encoder in (masked, pooled):
            special = set(encoder.backbone.vocabulary.tokenizer.all_special_ids) | {
                encoder.backbone.vocabulary.mask_token_id
            }
            (with_spelling,) = sequences(encoder, [spelled])
            (without,) = sequences(encoder, ["plain"])
            count = [
                sum(i in special for i in ids if i != encoder.backbone.vocabulary.tokenizer.unk_token_id)
                for ids in (with_spelling, without)
            ]
            assert count[0] == count[1], family


def test_more_spread_slots_than_positions_are_refused(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("bert", budget=Budget(500, 1), slot_positions="spread")
    with pytest.raises(ValueError, match="500 spread slots need"):
        encoder.preparer.prepare_queries(["text"])


def test_a_prefix_and_an_appended_end_survive_truncation(make_pooled: Make[PooledEncoder]) -> None:
    for semantics, length in (("text", 20 + 1 + 1), ("total", 20)):
        text = TextConfig(max_query_tokens=20, length_semantics=semantics)
        encoder = make_pooled("qwen2", text=text, pooling="last", query_prefix="river ", append_eos=True)
        (ids,) = sequences(encoder, [HUGE])
        assert ids[:1] == words_of(encoder, "river")
        assert ids[-1] == encoder.backbone.vocabulary.eos_token_id
        assert len(ids) == length
