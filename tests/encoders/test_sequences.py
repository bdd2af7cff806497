"""Sequences of masked and generating retrievers, written out by hand.

Legend: K slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import SYSTEM, PreparedText, Preparer, build_prompt, join_title, render_prompt
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import BackboneConfig, GeneratedRetriever, PromptConfig, Side, TextConfig
from tests.encoders.encoder_cases import HUGE, WORDS, FolderOf, Make, assert_close

TEXT = "honey and river water"
ASKS = {
    1: ("Use one word to represent the {side} in a retrieval task. Make sure your word is in lowercase.", "word is"),
    4: (
        "Use a few words to represent the {side} in a retrieval task. Make sure your words are in lowercase.",
        "words are",
    ),
}
_HEADERS = (
    "<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{before}",
    "{after}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{answer}",
)
FORMS = {
    "llada": (f"<|startoftext|>{_HEADERS[0]}", _HEADERS[1]),
    "llama3": (f"<|begin_of_text|>{_HEADERS[0]}", _HEADERS[1]),
    "qwen2": (
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{before}",
        "{after}<|im_end|>\n<|im_start|>assistant\n{answer}",
    ),
}
"""Chat forms as model cards print them."""
TAILS = {0: "", 1: "<|endoftext|>", 3: '"<|eot_id|><|endoftext|>'}


def prepare(preparer: Preparer, side: str, *texts: str) -> list[PreparedText]:
    return preparer.prepare_queries(texts) if side == "query" else preparer.prepare_passages([""] * len(texts), texts)


@pytest.mark.parametrize("side", ["query", "passage"])
@pytest.mark.parametrize(
    ("family", "slots", "tail"),
    [("llada", 1, 0), ("llada", 4, 1), ("llada", 4, 3), ("qwen2", 1, None), ("qwen2", 4, None), ("llama3", 4, None)],
)
def test_sequences_have_prompt_text_slots_and_tail(
    family: str,
    slots: int,
    tail: int | None,
    side: str,
    make_masked: Make[MaskedEncoder],
    make_generated: Make[GeneratedEncoder],
) -> None:
    """Paper Eq. 1; that of PromptReps ends with the opening quote."""
    is_generated = tail is None
    if is_generated:
        preparer: Preparer = make_generated(family, max_tokens=slots).preparer
    else:
        preparer = make_masked(family, tail_length=tail, budget=Budget(slots, slots)).preparer
    ask, noun = ASKS[slots]
    left, right = (
        part.format(system=SYSTEM, before=f'{side.capitalize()}: "', after=f'". {ask}', answer=f'The {noun} "')
        for part in FORMS[family]
    )
    right, end = right.format(side=side), "" if tail is None else "<|mdm_mask|>" * slots + TAILS[tail]
    tokenizer = preparer.vocabulary.tokenizer
    parts = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (left, TEXT, right, end)]
    (actual,) = prepare(preparer, side, TEXT)
    assert actual.input_ids.tolist() == [token for part in parts for token in part]
    assert (actual.slots, actual.n_tokens) == (slots, len(parts[1]))
    assert actual.prefix_tokens == (len(parts[0]) if is_generated else 0)
    assert actual.content_ids.tolist() == sorted(map(tokenizer.convert_tokens_to_ids, ("honey", "river", "water")))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llada", {"tail_length": 0}),
        ("llada", {"tail_length": 3, "read_offset": -1}),
        ("bert", {"slot_positions": "spread"}),
    ],
)
def test_vectors_are_states_at_the_slots(family: str, fields: dict[str, Any], make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked(family, budget=Budget(4, 4), **fields)
    (prepared,) = encoder.preparer.prepare_queries([TEXT])
    ids = torch.tensor([prepared.input_ids.tolist()])
    tail, longest = len(encoder.preparer.tail), encoder.backbone.max_length
    first = ids.shape[1] - tail - 4
    positions = None
    if "slot_positions" in fields:
        far = [longest - 12, longest - 28, longest - 44, longest - 60]
        positions = torch.tensor([[*range(first), *far, *range(first, first + tail)]])
    slots = torch.arange(first, first + 4)[None] + fields.get("read_offset", 0)
    with torch.inference_mode():
        states = encoder.backbone.forward(ids, torch.ones_like(ids), slots, position_ids=positions)
    # Among longer texts, so that the row has pads.
    actual = encoder.encode_queries([TEXT, " ".join(WORDS)]).take(np.array([0]))
    vectors_KH = torch.nn.functional.normalize(states.hidden[0], dim=-1).numpy()
    np.testing.assert_allclose(actual.vectors_MH.astype(np.float32), vectors_KH, atol=1e-3)
    words = prepared.content_ids.tolist()
    weights_V = torch.log1p(torch.relu(states.logits[0].amax(0))).numpy()
    expected = [word for word in words if weights_V[word] > 0]
    assert expected
    assert actual.impact_ids.tolist() == expected
    np.testing.assert_allclose(actual.impact_weights, weights_V[expected], atol=1e-4)
    assert actual.slot_tokens.tolist() == [words[i] for i in states.logits[0][:, words].argmax(-1)]


def test_the_bare_variant_has_no_words(
    make_masked: Make[MaskedEncoder], make_generated: Make[GeneratedEncoder]
) -> None:
    bare = PromptConfig(variant="bare")
    for family, expected in (
        ("dream", ["river", "<|mask|>", '"', "<|im_end|>", "<|endoftext|>"]),
        ("bert", ["[CLS]", "river", "[MASK]", '"', "[SEP]", "[SEP]"]),
    ):
        encoder = make_masked(family, prompt=bare)
        (river,) = encoder.preparer.prepare_queries(["river"])
        assert encoder.backbone.vocabulary.tokenizer.convert_ids_to_tokens(river.input_ids.tolist()) == expected
        assert np.isfinite(encoder.encode_queries([""]).vectors_MH).all()
    for family in ("qwen2", "llama3"):
        generating = make_generated(family, prompt=bare, max_tokens=2, stop="cap")
        tokenizer = generating.preparer.vocabulary.tokenizer
        river, nothing = prepare(generating.preparer, "query", "river", "")
        assert tokenizer.decode(river.input_ids) == f"{tokenizer.bos_token or ''}river"
        assert river.prefix_tokens == len(river.input_ids) - 1
        assert (len(nothing.input_ids), nothing.n_tokens, nothing.prefix_tokens) == (1, 0, 0)
        both = generating.encode([river, nothing])
        assert both.offsets.tolist() == [0, 2, 4]
        assert_close(both.take(np.array([1])), generating.encode([nothing]))


@pytest.mark.parametrize("most", [1, 7])
def test_room_is_kept_for_generated_tokens(most: int, folder_of: FolderOf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("qwen2"), tmp_path / "copy"))
    settings = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 120}
    (folder / "config.json").write_text(json.dumps(settings))
    place = BackboneConfig(source=str(folder), dtype="float32")
    encoder = load_encoder(GeneratedRetriever(backbone=place, max_tokens=most, stop="cap"), "cpu")
    long, river = prepare(encoder.preparer, "query", HUGE, "river")
    assert len(long.input_ids) == 120 - (most - 1)
    assert long.input_ids[-1] == river.input_ids[-1]
    assert encoder.encode([long, river]).offsets.tolist() == [0, most, 2 * most]
    short = TextConfig(max_query_tokens=2, length_semantics="total")
    with pytest.raises(ValueError, match=r"generated tokens 19; .*max_tokens"):
        prepare(load_preparer(GeneratedRetriever(backbone=place, text=short, max_tokens=20)), "query", "river")


def prompt(side: Side, slots: int, **config: Any) -> str:
    parts = build_prompt(PromptConfig(**config), side, slots)
    return f"{parts.before}x{parts.after} {parts.assistant}"


def test_the_authors_prompts() -> None:
    assert prompt("query", 16) == prompt("query", 2)
    assert prompt("query", 1, colon=True).endswith('The word is: "')
    three = prompt("query", 4, variant="three")
    assert "Use three words to represent" in three
    assert "words are in lowercase and split them by space." in three


def test_chat_templates() -> None:
    prompt = build_prompt(PromptConfig(), "query", 1)
    left, right = render_prompt(prompt, SimpleNamespace(chat_template=None), "[CLS]")
    assert left == f'[CLS]{SYSTEM}\nQuery: "'
    assert right.endswith('lowercase.\nThe word is "')
    tokenizer = SimpleNamespace(chat_template="x", apply_chat_template=lambda *_, **__: "nothing")
    with pytest.raises(ValueError, match="drops the user's message"):
        render_prompt(prompt, tokenizer)


@pytest.mark.parametrize(
    ("join", "joined"), [("space", "Honey Bees"), ("period-space", "Honey. Bees"), ("none", "Bees")]
)
def test_title_joins(join: str, joined: str) -> None:
    config = TextConfig.model_validate({"title_join": join})
    assert join_title("Honey", "Bees", config) == joined
    assert join_title("", "Bees", config) == "Bees"
    assert join_title("Honey", "", config) == ("" if join == "none" else "Honey")
