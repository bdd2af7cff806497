"""The inspection and the planner as programs: what they print and how they end."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.index import ROW_CHECKSUM, TEXT_SCHEMA
from diffretriever.schemas.inspect import IndexReport
from diffretriever.schemas.retriever import Bm25Retriever
from tests.jobs.programs import run_job
from tests.search.conftest import PASSAGES


def fill(uri: Path, table: pa.Table) -> Path:
    made = PassageIndex.create(str(uri), bm25_manifest(Bm25Retriever()))
    Committer(made).commit({"all": write_block(made.uri, table)}, [])
    return uri


def test_a_failed_verification_exits_with_status_1(tmp_path: Path) -> None:
    good = text_table(PASSAGES, "c")
    done = run_job("inspect_index", "--index", fill(tmp_path / "good", good), "--verify")
    assert done.status == 0, done.stderr
    assert "problems: none" in done.stdout
    assert "appended, 60 rows (+60 -0)" in done.stdout

    texts = ["another text", *good.column("text").to_pylist()[1:]]
    bad = fill(tmp_path / "bad", good.set_column(3, TEXT_SCHEMA.field("text"), pa.array(texts)))
    done = run_job("inspect_index", "--index", bad, "--verify", "--json-output")
    assert done.status == 1, done.stderr
    report = IndexReport.model_validate_json(done.stdout)
    assert report.verification is not None
    assert [(p.total, p.first) for p in report.verification.problems] == [(1, ["d0"])]
    assert report.codes is None
    assert set(report.columns) == {*TEXT_SCHEMA.names, ROW_CHECKSUM}
