"""The plan and its listing: a status for every row and collection, nothing loaded, nothing fetched."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import Bm25Retriever, has_slots
from diffretriever.schemas.training import Recipe
from diffretriever.studies.reproduction.plan import Plan, PlannedRow, Task, make_plan
from diffretriever.studies.reproduction.report import listing
from diffretriever.studies.reproduction.tables import AVERAGE, MINI, PAPER_TABLES, load_table
from diffretriever.training.session import check_trainable
from tests.studies.reproduction.cases import JobMaker
from tests.studies.reproduction.conftest import LLADA

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_network_and_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan neither connects nor loads")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("diffretriever.backbones.loader.load_backbone", refuse)
    monkeypatch.setattr("diffretriever.backbones.loader.load_vocabulary", refuse)


def row_of(plan: Plan, name: str) -> PlannedRow:
    (found,) = [row for row in plan.rows() if row.row.id == name]
    return found


def test_every_row_has_a_status_for_every_collection(job: JobMaker) -> None:
    plan = make_plan(job(dry_run=True))
    text = listing(plan)
    for name in (*PAPER_TABLES, MINI):
        table = load_table(name)
        planned = next(rows for found, rows in plan.tables if found.id == name)
        assert [row.row.id for row in planned] == [row.id for row in table.rows]
        for row in planned:
            assert set(row.tasks) == set(row.row.figures) - {AVERAGE}
            assert all(row.status(collection) for collection in row.tasks)
            assert row.row.label in text
    counted = sum(len(row.tasks) for row in plan.rows())
    ready, done, blocked = (int(part.split()[0]) for part in text.splitlines()[-1].split(", "))
    assert ready + done + blocked == counted
    assert done == 0


def test_reasons_say_what_is_missing(job: JobMaker) -> None:
    plan = make_plan(job("main-beir7", "index-storage", dry_run=True))
    assert row_of(plan, "zero-shot-bm25").status("scifact") == "ready"
    assert row_of(plan, "zero-shot-bm25").status("nq").startswith("no collection nq: give --collections nq=PATH")
    missing = row_of(plan, "zero-shot-diffretriever-llada-multi").status("scifact")
    assert missing == f"no weights for {LLADA}: not in the hub cache and no --backbones override"
    untrained = row_of(plan, "fine-tuned-promptreps-llama3-multi").status("scifact")
    assert untrained == (
        "needs an adapter: python jobs/train.py --recipe paper --train SET --retriever promptreps-llama3-tuned "
        "--output FOLDER, then --adapters promptreps-llama3-tuned=FOLDER/adapter"
    )
    authors = make_plan(job("main-beir7", protocol="authors", dry_run=True))
    assert (
        'promptreps-llama3-single (as a YAML file with prompt.colon: true, stop: "cap", content_words.subwords: true)'
        in row_of(authors, "fine-tuned-promptreps-llama3-single").status("scifact")
    )
    assert row_of(plan, "dream-single").status("msmarco") == "this job measures retrieval only: nothing to run"


@pytest.mark.parametrize("protocol", ["authors", "paper", "folded"])
def test_rows_of_two_passes_are_trained_so(protocol: str, job: JobMaker) -> None:
    """One adapter fits the row under every protocol."""
    plan = make_plan(job("multistep-beir7", protocol=protocol, dry_run=True))
    for backbone in ("dream", "llada"):
        preset = f"diffretriever-{backbone}-tuned-2step"
        row = row_of(plan, f"fine-tuned-{backbone}-2step")
        (asked,) = {row.status(collection) for collection in row.tasks}
        assert asked == (
            f"needs an adapter trained with S=2: python jobs/train.py --recipe paper --train SET --retriever {preset} "
            f"--output FOLDER, then --adapters {preset}=FOLDER/adapter"
        )
        config = load_retriever(preset)
        assert has_slots(config)
        assert (config.steps, config.schedule, config.backbone.adapter) == (2, "even", None)
        check_trainable(config, Recipe())


def test_an_adapter_goes_to_the_fine_tuned_row_alone(job: JobMaker, checkpoint: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    given = {"backbones": {LLADA: checkpoint}, "adapters": {"diffembed-llada": adapter}}
    plan = make_plan(job("main-beir7", **given, dry_run=True))
    adapters = {}
    for name in ("zero-shot-diffembed-llada", "fine-tuned-diffembed-llada"):
        task = row_of(plan, name).tasks["scifact"]
        assert isinstance(task, Task)
        assert not isinstance(task.retriever, Bm25Retriever)
        adapters[name] = task.retriever.backbone.adapter
    assert adapters == {"zero-shot-diffembed-llada": None, "fine-tuned-diffembed-llada": str(adapter)}


def test_weights_in_the_hub_cache_are_pinned_to_their_commit(job: JobMaker, checkpoint: Path, hub_cache: Path) -> None:
    repository = hub_cache / f"models--{LLADA.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(checkpoint, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    task = row_of(make_plan(job("multistep-beir7")), "zero-shot-llada-1step").tasks["scifact"]
    assert isinstance(task, Task)
    assert not isinstance(task.retriever, Bm25Retriever)
    assert (task.retriever.backbone.source, task.retriever.backbone.revision) == (LLADA, COMMIT)

    (snapshot / "model.safetensors").rename(snapshot / "moved")
    weight_map = {"weight_map": {"a": "model-1.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(weight_map))
    incomplete = row_of(make_plan(job("multistep-beir7")), "zero-shot-llada-1step").status("scifact")
    assert incomplete.startswith(f"no weights for {LLADA}")


def test_rows_with_one_config_share_an_index_and_no_others_do(job: JobMaker, checkpoint: Path) -> None:
    plan = make_plan(job("multistep-beir7", "beir7-modes", "main-beir7", "mini", backbones={LLADA: checkpoint}))
    tasks = [task for row in plan.rows() if isinstance(task := row.tasks["scifact"], Task)]
    pairs = {(task.retriever.model_dump_json(), task.index) for task in tasks}
    assert len(pairs) == len({config for config, _ in pairs}) == len({index for _, index in pairs})
    mean, maximum = row_of(plan, "q4p4-pooled-slots").tasks["scifact"], row_of(plan, "q4p4").tasks["scifact"]
    assert isinstance(mean, Task)
    assert isinstance(maximum, Task)
    assert (mean.index, mean.results != maximum.results) == (maximum.index, True)


def test_the_three_sets_on_ms_marco_share_their_passages(job: JobMaker, tmp_path: Path) -> None:
    folder = tmp_path / "passages"
    folder.mkdir()
    (folder / "collection.tsv").write_text("1\ta text\n")
    for queries, qrels in (
        ("queries.dev.small.tsv", "qrels.dev.small.tsv"),
        ("msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
        ("msmarco-test2020-queries.tsv", "2020qrels-pass.txt"),
    ):
        (folder / queries).write_text("7\ta question\n")
        (folder / qrels).write_text("7\t0\t1\t1\n")
    row = row_of(make_plan(job("main-indomain", collections={"msmarco": str(folder)})), "zero-shot-bm25")
    tasks = [task for task in row.tasks.values() if isinstance(task, Task)]
    assert [task.queries.split for task in tasks] == ["dev", "dl19", "dl20"]
    assert len({task.index for task in tasks}) == 1
    assert len({task.results for task in tasks}) == 3

    (folder / "2020qrels-pass.txt").unlink()
    row = row_of(make_plan(job("main-indomain", collections={"msmarco": str(folder)})), "zero-shot-bm25")
    assert re.search(r"no split dl20: .* lacks 2020qrels-pass\.txt .*Splits: dev, dl19", row.status("dl20"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": ("mini",), "collections": {"nq": "x"}}, r"--collections: no table asked for uses 'nq'"),
        ({"tables": ("main-beir7",), "collections": {"sifact": "x"}}, "Did you mean 'scifact'"),
        ({"tables": ("mini",), "backbones": {LLADA: "."}}, "--backbones: no row of the tables asked for uses"),
        ({"tables": ("main-beir7",), "adapters": {"diffembed-dreem": "."}}, "Did you mean 'diffembed-dream'"),
    ],
)
def test_overrides_that_nothing_uses_are_refused(job: JobMaker, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(job(**changes))
