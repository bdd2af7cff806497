"""The retrieval prompt (paper Table 1) and its variants, split around the text that it frames."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from schemas.retriever_parts import PromptConfig, Side

SYSTEM = "You are an AI assistant that can understand human language."
_NUMBER_NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTED_WORDS = re.compile(rf"\b(?:{'|'.join(_NUMBER_NAMES)}) words?\b")
_SENTINEL = "\ue000"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Texts before and after the passage or query, and the start of the assistant's answer."""

    before: str
    after: str
    assistant: str


def build_prompt(config: PromptConfig, side: Side, slots: int) -> Prompt:
    """Return the prompt for one side and `slots` = K slots; `bare` has no prompt and is a `ValueError` here.

    Source: paper Table 1; the switches `colon` and `rewrite_numbers` are the authors' code.
    """
    if config.variant == "bare":
        raise ValueError("the bare variant frames a text with no prompt")
    variant = config.variant
    if variant == "paper":
        variant = "one" if slots == 1 else "few"
    amount = {"one": "one word", "few": "a few words", "three": "three words"}[variant]
    noun = "word is" if variant == "one" else "words are"
    ending = " and split them by space" if variant == "three" else ""
    after = f'". Use {amount} to represent the {side} in a retrieval task. Make sure your {noun} in lowercase{ending}.'
    assistant = f'The {noun}{":" if config.colon else ""} "'
    if config.rewrite_numbers and slots > 1:
        after, assistant = _count_words(after, slots), _count_words(assistant, slots)
    return Prompt(before=f'{side.capitalize()}: "', after=after, assistant=assistant)


def _count_words(text: str, slots: int) -> str:
    count = _NUMBER_NAMES[slots - 1] if slots <= len(_NUMBER_NAMES) else str(slots)
    return _COUNTED_WORDS.sub(f"{count} words", text).replace("word is", "words are")


def frame(prompt: Prompt, tokenizer: Any, opening: str = "") -> tuple[str, str]:
    """Return the text left and right of the framed text, through the tokenizer's chat template if it has one.

    Without a template the plain form is used: `opening` (a [CLS] or a begin-of-sequence token), the system
    message, the user's message and the assistant's start, a line each.
    """
    if not getattr(tokenizer, "chat_template", None):
        return f"{opening}{SYSTEM}\n{prompt.before}", f"{prompt.after}\n{prompt.assistant}"
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{prompt.before}{_SENTINEL}{prompt.after}"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    left, found, right = rendered.partition(_SENTINEL)
    if not found:
        raise ValueError("the tokenizer's chat template drops the user's message: check chat_template")
    return left, right + prompt.assistant
