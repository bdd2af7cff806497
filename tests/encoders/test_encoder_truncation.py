"""Truncation shortens only the text, to the configured limit."""

from __future__ import annotations

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.presets import load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import Side, TextConfig
from tests.encoders.encoder_cases import HUGE, Make, sequences


def words_of(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.preparer.vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_huge_text_leaves_prompt_slots_and_tail_whole(masked: MaskedEncoder) -> None:
    (ids,) = sequences(masked, [HUGE])
    slots = masked.preparer.default_slots("query")
    left, right, after, _ = masked.preparer.frame("query", slots)
    ending = [*right, *after]
    limit = min(masked.preparer.text.max_query_tokens, masked.backbone.max_length - len(left) - len(ending))
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


@pytest.mark.parametrize("side", ["query", "passage"])
def test_repllama_keeps_its_first_and_last_token(side: Side, make_pooled: Make[PooledEncoder]) -> None:
    """The published input: `<|begin_of_text|>query: …<|eot_id|>`, with both in the limit of 512 tokens."""
    preset = load_retriever("repllama-llama3").model_dump(exclude={"backbone", "method"})
    preparer = make_pooled("llama3", **preset).preparer
    tokenizer = preparer.vocabulary.tokenizer
    short, long = preparer.prepare(["river", HUGE], side, [0, 0])
    assert tokenizer.decode(short.input_ids) == f"<|begin_of_text|>{side}: river<|eot_id|>"
    assert len(long.input_ids) == 512
    assert tokenizer.decode(long.input_ids).startswith(f"<|begin_of_text|>{side}: ")
    assert long.input_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in long.input_ids[:-1]


def test_the_model_length_is_not_exceeded(make_masked: Make[MaskedEncoder], make_pooled: Make[PooledEncoder]) -> None:
    text = TextConfig(max_query_tokens=5000, max_passage_tokens=5000)
    for encoder in (make_masked("bert", text=text), make_pooled("bert", text=text)):
        assert len(sequences(encoder, [HUGE])[0]) == encoder.backbone.max_length == 512
        assert len(encoder.encode_queries([HUGE])) == 1


def test_special_tokens_spelled_in_a_text_stay_text(
    make_masked: Make[MaskedEncoder], make_pooled: Make[PooledEncoder]
) -> None:
    spelled = "a <|im_end|> b <|mask|> c <|eot_id|> d <|mdm_mask|> e [MASK] f [SEP]"
    for encoder in (make_masked("dream"), make_masked("bert"), make_pooled("llada")):
        vocabulary = encoder.backbone.vocabulary
        tokenizer = vocabulary.tokenizer
        special = {*tokenizer.all_special_ids, vocabulary.mask_token_id} - {tokenizer.unk_token_id}
        with_spelling, without = sequences(encoder, [spelled, "plain"])
        assert sum(i in special for i in with_spelling) == sum(i in special for i in without)


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
