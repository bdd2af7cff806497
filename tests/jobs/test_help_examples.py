"""What helps somebody who does not know the jobs: examples in --help, which jobs take, and the list of presets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

import diffretriever as dr
from diffretriever.collections.beir import FOLDERS
from diffretriever.rerank import RERANKERS
from diffretriever.schemas.settings import PresetListing
from tests.jobs.programs import run_job
from tests.jobs.test_command_lines import JOBS, ROOT

EXAMPLES: dict[str, list[str]] = yaml.safe_load((ROOT / "jobs" / "examples.yaml").read_text("utf-8"))
NAMES = {
    "retriever": dr.list_presets(),
    "reranker": RERANKERS.purposes(),
    "collection": [*FOLDERS, "notes/", "articles.csv"],
    "validation": list(FOLDERS),
}
"""Field → what an example may say; folders and files of the reader's own are made up."""


def test_every_job_has_examples() -> None:
    assert EXAMPLES.keys() == JOBS.keys()
    assert {2, 3} >= {len(set(own)) for own in EXAMPLES.values()}


@pytest.mark.parametrize(("name", "example"), [(name, each) for name, own in EXAMPLES.items() for each in own])
def test_examples_are_valid_command_lines(
    name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "COLLECTIONS").mkdir()
    monkeypatch.chdir(tmp_path)
    if example == "--list-presets":
        assert issubclass(JOBS[name], PresetListing)
        return
    config = JOBS[name].from_command_line(shlex.split(example))
    for field, known in NAMES.items():
        value = getattr(config, field, None)
        assert value is None or value in known or value == JOBS[name].model_fields[field].default


def test_help_ends_with_examples_and_presets_are_listed() -> None:
    listing = [name for name, job in JOBS.items() if issubclass(job, PresetListing)]
    assert listing == [name for name, job in JOBS.items() if "retriever" in job.model_fields]
    helped, *listed = run_job("encode_beir", "--help"), *(run_job(name, "--list-presets") for name in listing)
    expected = [f"  python {ROOT / 'jobs' / 'encode_beir.py'} {example}" for example in EXAMPLES["encode_beir"]]
    assert helped.stdout.splitlines()[-len(expected) - 1 :] == ["examples:", *expected]
    for ended in listed:
        assert ended.status == 0
        rows = [re.fullmatch(r"(\S+)( +)(\S.*)", line) for line in ended.stdout.splitlines()]
        assert [row and row[1] for row in rows] == list(dr.list_presets())
        assert len({row.start(3) for row in rows if row}) == 1, "aligned"


def test_every_preset_has_a_purpose() -> None:
    purposes = dr.list_presets()
    assert all(purpose.endswith(".") and len(purpose) < 110 for purpose in purposes.values())
    assert len(set(purposes.values())) == len(purposes), "none has inherited another's"


def test_a_misspelt_preset_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"'minilm'. Did you mean 'minilm-pooled' or .*'diffretriever-minilm'"):
        dr.load_retriever("minilm")


def test_a_demo_without_qrels_encodes_nothing(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n')
    ended = run_job("demo", "--collection", tmp_path, folder=tmp_path)
    assert (ended.status, ended.stdout) == (1, "")
    assert "has no split 'test'" in ended.stderr
    assert not (tmp_path / "demo").exists()
