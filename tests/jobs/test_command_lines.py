"""The jobs as programs: help at once, exit statuses, one clear line for every mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.settings import JobConfig
from tests.jobs.programs import own_process, run_job
from tests.search.conftest import PASSAGES

ROOT = Path(__file__).resolve().parents[2]


def job_configs() -> dict[str, type[JobConfig]]:
    """Return the config of each file in `jobs/`: the parameter of its `main`."""
    with own_process():
        mains = {file.stem: import_module(file.stem).main for file in sorted((ROOT / "jobs").glob("[a-z]*.py"))}
        return {name: next(iter(get_type_hints(main).values())) for name, main in mains.items()}


JOBS = job_configs()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    made = PassageIndex.create(str(tmp_path / "index"), bm25_manifest(Bm25Retriever()))
    Committer(made).commit({"all": write_block(made.uri, text_table(PASSAGES, "c"))}, [])
    return tmp_path / "index"


@pytest.mark.parametrize("name", JOBS)
def test_help_is_complete(name: str) -> None:
    done = run_job(name, "--help")
    assert done.status == 0
    assert (JOBS[name].__doc__ or "").split("\n")[0] in " ".join(done.stdout.split())
    flags = re.findall(r"^  (--[a-z0-9-]+)", done.stdout, re.MULTILINE)
    required = [flag for flag in flags if f"[{flag}" not in done.stdout and f" {flag} " in done.stdout.split("\n\n")[0]]
    assert flags[: len(required)] == required, "required flags come first"
    assert not re.search(r"tuple\[|dict\[|StorePath|\b(str|int|float)\b", done.stdout.split("options:")[0])
    assert not re.search(r"\{[^}]*\{", done.stdout), "choices within choices"
    for empty in ("default: None", "default: ()", "default: )", "default factory"):
        assert empty not in done.stdout
    for field in JOBS[name].model_fields:
        assert f"--{field.replace('_', '-')}" in done.stdout
        assert JOBS[name].model_fields[field].description, f"{name}: {field} has no description"


def test_help_is_instant() -> None:
    """No job loads packages that take seconds to import."""
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT / 'jobs')!r})\n"
        f"for name in {list(JOBS)!r}:\n    runpy.run_path({str(ROOT / 'jobs')!r} + f'/{{name}}.py', run_name='job')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "ray", "lance", "transformers"} & set(done.stdout.split())


def test_search_prints_ranked_passages(index: Path) -> None:
    done = run_job("search", "--index", index, "--query", "heat in a slab", "--top-k", 2)
    assert done.status == 0, done.stderr
    assert "   1. " in done.stdout
    assert "   2. " in done.stdout
    rows = json.loads(run_job("search", "--index", index, "--query", "heat", "--top-k", 2, "--json-output").stdout)
    assert [set(row) for row in rows] == [{"id", "score", "mode", "title", "text", "collection", "metadata"}] * 2


def test_a_job_whose_output_is_closed_ends_quietly() -> None:
    """As by `| head -1`: every job's output goes through the same place."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(ROOT / "jobs" / "encode_beir.py"), "--list-presets"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_an_older_version_is_searched_and_restored(index: Path) -> None:
    deleted = [*(f"d{number}" for number in range(1, 60)), "nothing"]
    done = run_job("maintain_index", "--index", index, "--delete", ",".join(deleted))
    assert "deleted 59 of 60 ids" in done.stdout
    ask = ["--index", index, "--query", "slot", "--json-output"]
    assert len(json.loads(run_job("search", *ask).stdout)) == 1
    assert len(json.loads(run_job("search", *ask, "--version", 2).stdout)) == 10
    assert "has no version 9" in run_job("search", *ask, "--version", 9).stderr
    assert "back at version 2" in run_job("maintain_index", "--index", index, "--restore", 2).stdout
    assert len(json.loads(run_job("search", *ask).stdout)) == 10


def test_a_restore_skips_an_unreadable_latest_version(index: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_job("maintain_index", "--index", index, "--delete", "d1")
    newest = min((index / "passages.lance" / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    lost = run_job("search", "--index", index, "--query", "slot")
    assert f"{newest} from a copy, or go back with maintain_index.py --index {index} --restore 2," in lost.stderr
    done = run_job("maintain_index", "--index", index, "--restore", 2)
    assert done.stdout == f"back at version 2\n{index}: 60 passages, version 3\n"
    assert caplog.messages[-1] == f"version 3 cannot be opened: its manifest was renamed to {newest}.unreadable"
    assert run_job("search", "--index", index, "--query", "slot").status == 0


def test_a_run_is_evaluated_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tb\t1\nq2\ta\t1\n")
    output = tmp_path / "out"
    done = run_job("evaluate", "--runs", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.tsv", "--output", output)
    assert done.status == 0, done.stderr
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["measures"]["run"]["MRR@10"] == pytest.approx(0.25)
    assert metrics["queries"] == 2
    assert {file.name for file in output.iterdir()} >= {"report.md", "report.png", "per_query.parquet", "evaluate.yaml"}


MISTAKES = [
    ("search", ["--index", "nowhere", "--query", "x"], "no index at nowhere"),
    ("encode_beir", ["--collection", "my-corpus", "--index", "i", "--retriever", "bm25"], "no such name. Known: arg"),
    ("encode_beir", ["--collection", "nowhere", "--index", "i", "--retriever", "bm25"], "no collection 'nowhere'"),
    ("evaluate", ["--runs", "no.trec", "--qrels", "no.tsv", "--output", "o"], "no.tsv"),
    ("maintain_index", ["--index", "i"], "nothing to do"),
    ("prepare_training", ["--source", "nowhere", "--output", "o"], "no collection 'nowhere'"),
    ("mine_negatives", ["--source", "s", "--index", "nowhere", "--output", "o.jsonl"], "nowhere: make one with"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), MISTAKES)
def test_user_errors_are_one_line_and_status_1(name: str, arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run_job(name, *arguments, folder=tmp_path)
    assert done.status == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


_IN_A_CALL = """try:
        {}
    except BaseException as error:
        raise SystemError("returned a result with an exception set") from error"""


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        # Ray answers the signal itself while it starts: it exits with the signal's number.
        ("sys.exit(15)", 128 + 15, "terminated: committed work is safe"),
        # As in the middle of a call of Ray's, which is told of by another error.
        (_IN_A_CALL.format("_entry._terminate()"), 128 + 15, "terminated: committed work is safe"),
        (_IN_A_CALL.format("raise KeyboardInterrupt"), 128 + 2, "interrupted: committed work is safe"),
        (
            "raise ray.exceptions.LocalRayletDiedError()",
            1,
            "error: Ray lost a process or node of this job (The task's local raylet died. Check raylet.out for",
        ),
        (
            "raise ray.exceptions.ActorUnavailableError('RPC error: Socket closed', None)",
            1,
            "error: Ray lost a process or node of this job (The actor",
        ),
    ],
)
def test_a_job_that_ray_ends_reports_that_work_is_safe(end: str, status: int, told: str, tmp_path: Path) -> None:
    job = tmp_path / "ended.py"
    job.write_text(
        "import sys, _entry, ray\nfrom diffretriever.schemas.inspect import InspectJob\n\n"
        f"def main(_):\n    {end}\n\n_entry.run(InspectJob, main)\n"
    )
    done = run_job(str(job.with_suffix("")), "--index", tmp_path)
    assert done.status == status
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1
