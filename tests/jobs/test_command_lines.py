"""The jobs as programs: help at once, exit statuses, one clear line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diffretriever.index.table import PassageIndex, bm25_manifest
from diffretriever.index.writer import Committer, text_table, write_block
from schemas.accelerate import AccelerateJob
from schemas.analyse import AnalyseBudgetsJob
from schemas.compress import CompressJob
from schemas.encode import EncodeJob
from schemas.evaluate import DemoJob, EvaluateJob
from schemas.inspect import InspectJob, MaintainJob
from schemas.plan import PlanJob
from schemas.prune import PruneSlotsJob
from schemas.reproduce import ReproduceJob
from schemas.rerank import RerankJob
from schemas.retriever import Bm25Retriever
from schemas.search import BatchSearchJob, SearchJob
from schemas.selector import FitSelectorJob
from schemas.settings import JobConfig
from schemas.sweep import SweepJob
from schemas.training import TrainJob
from schemas.training_data import MineNegativesJob, PrepareTrainingJob
from tests.search.conftest import PASSAGES

ROOT = Path(__file__).resolve().parents[2]
JOBS: dict[str, type[JobConfig]] = {
    "accelerate_index": AccelerateJob,
    "analyse_budgets": AnalyseBudgetsJob,
    "batch_search": BatchSearchJob,
    "compress_index": CompressJob,
    "demo": DemoJob,
    "encode_beir": EncodeJob,
    "evaluate": EvaluateJob,
    "fit_selector": FitSelectorJob,
    "inspect_index": InspectJob,
    "maintain_index": MaintainJob,
    "mine_negatives": MineNegativesJob,
    "plan": PlanJob,
    "prepare_training": PrepareTrainingJob,
    "prune_slots": PruneSlotsJob,
    "reproduce": ReproduceJob,
    "rerank": RerankJob,
    "search": SearchJob,
    "sweep_budgets": SweepJob,
    "train": TrainJob,
}


def job(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    made = PassageIndex.create(str(tmp_path / "index"), bm25_manifest(Bm25Retriever()))
    Committer(made).commit({"all": write_block(made.uri, text_table(PASSAGES, "c"))}, [])
    return tmp_path / "index"


def test_every_job_is_listed_here() -> None:
    assert {file.stem for file in (ROOT / "jobs").glob("*.py")} - {"_entry"} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_help_is_complete_and_loads_nothing_heavy(name: str) -> None:
    done = job(name, "--help")
    assert done.returncode == 0
    assert (JOBS[name].__doc__ or "").split("\n")[0] in " ".join(done.stdout.split())
    for field in JOBS[name].model_fields:
        assert f"--{field.replace('_', '-')}" in done.stdout
        assert JOBS[name].model_fields[field].description, f"{name}: {field} has no description"


def test_help_is_instant() -> None:
    """It loads none of what takes seconds."""
    code = (
        f"import sys; sys.argv = ['x', '--help']; sys.path[:0] = [{str(ROOT / 'jobs')!r}]\n"
        "try:\n import encode_beir, _entry; _entry.run(encode_beir.EncodeJob, encode_beir.main)\n"
        "except SystemExit: print([m for m in ('torch', 'ray', 'lance', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_search_prints_ranked_passages(index: Path) -> None:
    done = job("search", "--index", index, "--query", "heat in a slab", "--top-k", 2)
    assert done.returncode == 0, done.stderr
    assert "   1. " in done.stdout
    assert "   2. " in done.stdout
    rows = json.loads(job("search", "--index", index, "--query", "heat", "--top-k", 2, "--json-output").stdout)
    assert [set(row) for row in rows] == [{"id", "score", "mode", "title", "text", "collection"}] * 2


def test_inspect_and_maintain(index: Path) -> None:
    assert "rows: 60" in job("inspect_index", "--index", index).stdout
    done = job("maintain_index", "--index", index, "--delete", "d1,d2,nothing", "--compact")
    assert done.returncode == 0, done.stderr
    assert "deleted 2 of 3 ids given" in done.stdout
    assert json.loads(job("inspect_index", "--index", index, "--json-output").stdout)["contents"]["rows"] == 58


def test_a_run_is_scored_by_itself(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tb\t1\nq2\ta\t1\n")
    output = tmp_path / "out"
    done = job("evaluate", "--run", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.tsv", "--output", output)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["measures"]["run"]["MRR@10"] == pytest.approx(0.25)
    assert metrics["queries"] == 2
    assert {file.name for file in output.iterdir()} >= {"report.md", "report.png", "per_query.parquet", "evaluate.yaml"}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", ["--index", "nowhere", "--query", "x"], "no index at nowhere"),
        ("encode_beir", ["--collection", "nowhere", "--index", "i", "--retriever", "bm25"], "no collection 'nowhere'"),
        ("evaluate", ["--run", "no.trec", "--qrels", "no.tsv", "--output", "o"], "no.trec"),
        ("maintain_index", ["--index", "i"], "nothing to do"),
        ("prepare_training", ["--source", "nowhere", "--output", "o"], "no collection 'nowhere'"),
        ("mine_negatives", ["--source", "s", "--index", "nowhere", "--output", "o.jsonl"], "nowhere: make one with"),
    ],
)
def test_mistakes_are_one_line_and_status_1(name: str, arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
