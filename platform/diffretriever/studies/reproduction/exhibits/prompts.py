"""Table 1: the prompts, as the encoders print them."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import get_args

import pandas as pd
import yaml

from diffretriever.encoders.preparer import SYSTEM, Prompt, build_prompt
from diffretriever.evaluation.formats.pages import Table
from diffretriever.schemas.retriever import PromptConfig, Side
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown

_SEVERAL = 4
"""Any number of slots above one has the same prompt."""
_QUOTES = str.maketrans({"\N{LEFT DOUBLE QUOTATION MARK}": '"', "\N{RIGHT DOUBLE QUOTATION MARK}": '"'})
_BAR = "\N{DIVIDES}"


class Prompts(Exhibit):
    """Needs no results: the code's own texts are held against the paper's."""

    def lacks(self, findings: Findings) -> list[str]:
        """Return the parts that the code has otherwise than the paper."""
        paper, ours = published_prompts(), used_prompts()
        return [
            f"the code's {role} text for a {side} differs from the paper's"
            for role in paper
            for side in paper[role]
            if paper[role][side].translate(_QUOTES) != ours[role][side]
        ]

    def show(self, findings: Findings) -> Shown:
        """Show the paper's text, and the code's below it where it differs."""
        paper, ours = published_prompts(), used_prompts()
        rows = []
        for role, texts in paper.items():
            rows.append([role, *(texts[side] for side in get_args(Side))])
            if any(texts[side].translate(_QUOTES) != ours[role][side] for side in texts):
                rows.append([f"{role} (code)", *(ours[role][side] for side in get_args(Side))])
        caption = "Retrieval prompts; in brackets the words for one representation and for several."
        table = Table(self.place, caption, pd.DataFrame(rows, columns=["Role", "Query", "Passage"]), n_labels=3)
        return Shown([table, "; ".join(self.lacks(findings)) or "The encoders use these texts, letter by letter."])


@cache
def published_prompts() -> dict[str, dict[Side, str]]:
    """Return the paper's texts by role and side."""
    text = (files("diffretriever.studies.reproduction.exhibits") / "prompts.yaml").read_text("utf-8")
    values: dict[str, dict[Side, str]] = yaml.safe_load(text)
    return values


def used_prompts() -> dict[str, dict[Side, str]]:
    """Return the encoders' texts by role and side, written as the paper writes its alternatives."""
    sides: tuple[Side, ...] = get_args(Side)
    both = {side: [build_prompt(PromptConfig(), side, slots) for slots in (1, _SEVERAL)] for side in sides}
    return {
        "System": dict.fromkeys(sides, SYSTEM),
        "User": {side: alternatives(*map(_user, both[side])) for side in sides},
        "Assistant": {side: alternatives(*(prompt.assistant for prompt in both[side])) for side in sides},
    }


def _user(prompt: Prompt) -> str:
    return f"{prompt.before}x{prompt.after}"


def alternatives(one: str, several: str) -> str:
    """Write two texts as one, with brackets around the words in which they differ."""
    left, right = one.split(" "), several.split(" ")
    parts = []
    for kind, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        same, other = " ".join(left[a:b]), " ".join(right[c:d])
        parts.append(same if kind == "equal" else f"[{same} {_BAR} {other}]")
    return " ".join(parts)
