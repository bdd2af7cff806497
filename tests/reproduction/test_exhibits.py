"""Tables and figures that need no results: the code's own values against the paper's."""

from __future__ import annotations

import pytest

from diffretriever.reproduction.exhibits.hyperparameters import code_values, published_hyperparameters
from diffretriever.reproduction.exhibits.prompts import alternatives, published_prompts, used_prompts


def test_the_encoders_prompts_are_the_papers_letter_by_letter() -> None:
    straight = str.maketrans("\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}", '""')
    paper = {
        role: {side: text.translate(straight) for side, text in texts.items()}
        for role, texts in published_prompts().items()
    }
    assert paper == used_prompts()


@pytest.mark.parametrize(
    ("one", "several", "both"),
    [("a b c", "a b c", "a b c"), ("a one c", "a few of c", "a [one ∣ few of] c")],  # noqa: RUF001
)
def test_two_texts_are_written_as_one(one: str, several: str, both: str) -> None:
    assert alternatives(one, several) == both


def test_the_codes_hyperparameters_are_the_papers_but_for_the_strategy() -> None:
    ours = code_values()
    different = {
        name
        for lines in published_hyperparameters().values()
        for name, line in lines.items()
        if line.code is not None and ours[line.code] != line.paper
    }
    # The gradients of plain data parallelism are those of ZeRO-2.
    assert different == {"Distributed / hardware"}
    assert len([line for lines in published_hyperparameters().values() for line in lines.values()]) == 29


def test_every_value_of_the_code_is_in_the_table() -> None:
    named = {line.code for lines in published_hyperparameters().values() for line in lines.values()}
    assert set(code_values()) <= named
