"""Every selector by one contract, and each by what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.budgets.selectors import (
    FixedSelector,
    LearnedSelector,
    RuleSelector,
    Selector,
    load_artefact,
    open_selector,
)
from diffretriever.schemas.selector import FittedFeature, LearnedSelectorArtefact

LENGTH = FittedFeature(name="length", low=2, high=20, centre=8, scale=4)


def artefact(**changes: object) -> LearnedSelectorArtefact:
    values: dict[str, object] = {
        "fingerprint": "f00d",
        "retriever": "masked tiny",
        "collections": ("c/train",),
        "mode": "dense",
        "measure": "nDCG@10",
        "passage_budget": 4,
        "queries": 100,
        "created": "2026-01-01T00:00:00+00:00",
        "command": "python jobs/fit_selector.py",
        "cost": 0.0,
        "penalty": 0.1,
        "budgets": (1, 4, 16),
        "features": (LENGTH,),
        "intercepts": (0.50, 0.51, 0.50),
        "coefficients": ((-0.04,), (0.0,), (0.04,)),
    }
    return LearnedSelectorArtefact.model_validate(values | changes)


SELECTORS = [FixedSelector(4), RuleSelector(), RuleSelector((3, 6)), LearnedSelector(artefact())]


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: s.name)
def test_every_choice_is_allowed_and_the_same_every_time(selector: Selector) -> None:
    for length in range(300):
        features = {"length": float(length), "entropy": 2.0}
        assert selector.choose(features) in selector.budgets
        assert selector.choose(features) == selector.choose(dict(features))
        assert selector.choose({name: features[name] for name in selector.features}) == selector.choose(features)
    assert list(selector.budgets) == sorted(selector.budgets)


@pytest.mark.parametrize("selector", SELECTORS[1:], ids=lambda s: s.name)
def test_a_missing_feature_is_named(selector: Selector) -> None:
    with pytest.raises(ValueError, match="needs the query feature 'length'"):
        selector.choose({"entropy": 1.0})


def test_the_rule_rises_from_2_to_8() -> None:
    chosen = [RuleSelector().choose({"length": float(length)}) for length in range(200)]
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[8], chosen[16], chosen[32], chosen[-1]) == (2, 2, 4, 8, 8)
    assert set(chosen) == {2, 4, 8}
    assert [RuleSelector((1, 16)).choose({"length": float(x)}) for x in (1, 16, 17, 100)] == [1, 1, 16, 16]


def test_learned_choices_by_hand() -> None:
    """At length 8 the middle is best by .01; a standard deviation of 4 moves the ends by .04."""
    selector = LearnedSelector(artefact())
    assert [selector.choose({"length": x}) for x in (2.0, 8.0, 8.9, 9.1, 14.0)] == [1, 4, 4, 16, 16]


def test_cost_is_per_slot_and_ties_go_to_fewer() -> None:
    flat = {"intercepts": (0.5, 0.506, 0.516), "coefficients": ((0.0,), (0.0,), (0.0,))}
    choices = {
        cost: LearnedSelector(artefact(cost=cost, **flat)).choose({"length": 8.0}) for cost in (0.0, 0.001, 0.0025)
    }
    assert choices == {0.0: 16, 0.001: 4, 0.0025: 1}
    even = artefact(intercepts=(0.5, 0.5, 0.5), coefficients=((0.0,), (0.0,), (0.0,)))
    assert LearnedSelector(even).choose({"length": 8.0}) == 1


def test_lengths_beyond_training_count_as_its_ends() -> None:
    steep = artefact(intercepts=(0.0, 0.2, 0.0), coefficients=((0.0,), (0.0,), (0.04,)))
    selector = LearnedSelector(steep)
    assert {selector.choose({"length": x}) for x in (20.0, 1000.0)} == {4}


def test_an_artefact_is_read_from_its_file_for_its_encoder_alone(tmp_path: Path) -> None:
    path = tmp_path / "selector.json"
    path.write_text(artefact().model_dump_json(indent=2))
    assert load_artefact(path) == artefact()
    assert open_selector(str(path), "f00d").name == "learned λ=0"
    with pytest.raises(ValueError, match=r"fitted for encoder f00d \(masked tiny\), but beef is to encode"):
        open_selector(str(path), "beef")


@pytest.mark.parametrize(
    ("source", "name", "budgets"),
    [("fixed:8", "fixed:8", (8,)), ("rule", "rule", (2, 4))],
)
def test_selectors_by_name(source: str, name: str, budgets: tuple[int, ...]) -> None:
    selector = open_selector(source, "any", (4, 2))
    assert (selector.name, selector.budgets) == (name, budgets)


@pytest.mark.parametrize("source", ["rules", "fixed", "fixed:", "fixed:x", "nowhere.json"])
def test_an_unknown_selector_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=f"no selector '{source}'"):
        open_selector(source, "any")


def test_budgets_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        open_selector("fixed:0", "any")
    with pytest.raises(ValueError, match="each at least 1"):
        RuleSelector(())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "cannot be used: fingerprint is required: give a selector that"),
        ("not json", "cannot be used: Invalid JSON"),
        (artefact(features=(LENGTH.model_copy(update={"name": "size"}),)).model_dump_json(), "no query feature 'size'"),
    ],
)
def test_a_malformed_artefact_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "selector.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_artefact(path)
