"""The paper's prompt table, the authors' variants, and framing with and without a chat template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diffretriever.encoders.preparer import SYSTEM, build_prompt, frame
from diffretriever.schemas.retriever import PromptConfig, Side


def whole(side: Side, slots: int, **config: Any) -> str:
    prompt = build_prompt(PromptConfig(**config), side, slots)
    return f"{prompt.before}x{prompt.after} {prompt.assistant}"


@pytest.mark.parametrize("side", ["query", "passage"])
def test_the_papers_table(side: Side) -> None:
    name = side.capitalize()
    assert whole(side, 1) == (
        f'{name}: "x". Use one word to represent the {side} in a retrieval task. '
        'Make sure your word is in lowercase. The word is "'
    )
    for slots in (2, 16):
        assert whole(side, slots) == (
            f'{name}: "x". Use a few words to represent the {side} in a retrieval task. '
            'Make sure your words are in lowercase. The words are "'
        )


def test_the_authors_colon_and_three_words() -> None:
    assert whole("query", 1, colon=True).endswith('The word is: "')
    three = whole("query", 4, variant="three")
    assert "Use three words to represent" in three
    assert "words are in lowercase and split them by space." in three


def test_plain_frame_without_a_chat_template() -> None:
    left, right = frame(build_prompt(PromptConfig(), "query", 1), SimpleNamespace(chat_template=None), "[CLS]")
    assert left == f'[CLS]{SYSTEM}\nQuery: "'
    assert right.endswith('lowercase.\nThe word is "')


def test_a_template_that_drops_the_user_is_an_error() -> None:
    tokenizer = SimpleNamespace(chat_template="x", apply_chat_template=lambda *_, **__: "nothing")
    with pytest.raises(ValueError, match="drops the user's message"):
        frame(build_prompt(PromptConfig(), "query", 1), tokenizer)
