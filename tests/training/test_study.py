"""The study of the embedded model: its arms, its tables, its samples of collections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from diffretriever.collections import Passage, open_collection
from diffretriever.evaluation.statistics import holm, paired_p
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER
from diffretriever.schemas.training import Recipe
from diffretriever.training.session import check_trainable
from tests.training.made_up_collection import write_collection
from tools import ROOT
from tools.sample_collection import SampleCollection
from tools.sample_collection import main as sample
from tools.study import Arm, Measured, merged, report

STUDY = yaml.safe_load((ROOT / "tools" / "study.yaml").read_text("utf-8"))


def test_changes_are_put_into_the_base() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 4}}
    assert merged(base, {"a": {"b": 5}, "d": None, "e": {"f": None}}) == {"a": {"b": 5, "c": 2}, "e": {}}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 4}}


@pytest.mark.parametrize("name", STUDY["arms"])
def test_every_arm_can_be_trained(name: str) -> None:
    arm, base = Arm.model_validate(STUDY["arms"][name]), STUDY["base"]
    assert arm.against is None or arm.against in STUDY["arms"]
    recipe = Recipe.model_validate(merged(base["recipe"], arm.recipe))
    check_trainable(RETRIEVER_ADAPTER.validate_python(merged(base["retriever"], arm.retriever)), recipe)


def run_of(arm: str, seed: int, values: dict[str, float]) -> Measured:
    return Measured(
        arm=arm,
        seed=seed,
        steps=3,
        trainable=7,
        seconds=1.0,
        threads=1,
        curve=[],
        values={"dev q4p4 dense": values},
        slot_cosines={"q4p4": (0.5, 0.25)},
    )


def test_the_tables() -> None:
    arms = {"plain": Arm(about="the base"), "more": Arm(about="with more", against="plain"), "missing": Arm(about="-")}
    runs = [
        run_of("plain", 1, {"a": 0.5, "b": 0.2, "c": 0.4}),
        run_of("plain", 2, {"a": 0.7, "b": 0.4, "c": 0.4}),
        run_of("more", 1, {"a": 0.9, "b": 0.2, "c": 0.7}),
        run_of("more", 3, {"a": 0.0, "b": 0.0, "c": 0.0}),
    ]
    figures, changes = report(arms, runs).split("\n\n")
    assert "0.433 ±0.067 / - / -" in figures, "the mean over seeds and half their range"
    assert "0.50 / 0.25" in figures
    assert "missing" not in figures
    # Only seed 1 has both.
    p = paired_p({"a": 0.9, "b": 0.2, "c": 0.7}, {"a": 0.5, "b": 0.2, "c": 0.4})
    assert [cell.strip() for cell in changes.splitlines()[-1].strip("|").split("|")] == [
        "more", "plain", "q4p4", "dense", "1", "+0.2333", f"{holm([p])[0]:.3f}",
    ]  # fmt: skip


def test_arms_without_a_budget_in_common_are_compared_at_their_own() -> None:
    arms = {"plain": Arm(about="the base"), "pooled": Arm(about="one vector", against="plain")}
    plain = run_of("plain", 1, {"a": 0.5, "b": 0.2})
    values = {key.replace("q4p4", "single"): value for key, value in plain.values.items()}
    pooled = plain.model_copy(
        update={"arm": "pooled", "values": values, "slot_cosines": {"single": (1.0, 1.0)}},
    )
    changes = report(arms, [plain, pooled]).split("\n\n")[1]
    assert "| pooled | plain | single / q4p4 | dense | 1 | +0.0000 |" in changes


def test_a_sample_of_long_queries_asks_for_halves_of_passages(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(120)]
    lines = [{"_id": "long", "title": "", "text": " ".join(words)}, {"_id": "short", "title": "", "text": "word1"}]
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sample(
        SampleCollection(
            collection=str(tmp_path / "whole"), split="dev", halves=True, passages=2, output=tmp_path / "halves"
        )
    )
    found = open_collection(str(tmp_path / "halves"))
    assert [(query.id, query.text.split()) for query in found.queries("dev")] == [("long", words[60:])]
    assert found.qrels("dev") == {"long": {"long": 1}}
    texts = {record.id: record.text for record in found.records() if isinstance(record, Passage)}
    assert texts == {"long": " ".join(words[:60]), "short": "word1"}


def test_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole").mkdir()
    whole = open_collection(str(write_collection(tmp_path / "whole")))
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        sample(
            SampleCollection(
                collection=str(tmp_path / "whole"),
                split="test",
                queries=2,
                passages=5,
                seed=seed,
                output=tmp_path / name,
            )
        )
    first, again, other = (open_collection(str(tmp_path / name)) for name in ("first", "again", "other"))
    assert "2 queries" in capsys.readouterr().out
    qrels = first.qrels("test")
    assert len(qrels) == 2
    assert all(qrels[query] == whole.qrels("test")[query] for query in qrels)
    passages = {record.id: record for record in first.records()}  # type: ignore[union-attr]
    assert len(passages) >= 5
    assert all(passage in passages for judged in qrels.values() for passage in judged)
    assert passages == {record.id: record for record in again.records()}  # type: ignore[union-attr]
    assert passages != {record.id: record for record in other.records()}  # type: ignore[union-attr]
