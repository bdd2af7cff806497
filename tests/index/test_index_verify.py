"""Verification finds each kind of damage and names the passage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.collections import Passage
from diffretriever.index.damage import manifests_of
from diffretriever.index.fragment_files import FileKind
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from diffretriever.schemas.index import IndexManifest, passage_schema
from diffretriever.schemas.inspect import Problem
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever, MaskedRetriever
from diffretriever.search.accelerate import complete
from diffretriever.search.dense.codes import CODES
from diffretriever.search.inspection import inspect
from diffretriever.search.sparse.postings import POSTINGS

HIDDEN, VOCAB = 8, 50
BACKBONE = BackboneConfig(source="x", dtype="float32")
MASKED = MaskedRetriever.model_validate({"backbone": BACKBONE, "budget": "q1p2"})
Row = dict[str, object]


def good_row(passage_id: str) -> Row:
    """A passage with two unit vectors and two impacts."""
    vectors = np.random.default_rng(len(passage_id)).normal(size=(2, HIDDEN))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return {
        "id": passage_id,
        "collection": "c",
        "title": "",
        "text": f"text of {passage_id}",
        "digest": Passage(passage_id, "", f"text of {passage_id}").digest,
        "reps": list(vectors.astype(np.float16)),
        "slot_tokens": [3, -1],
        "impact_ids": [0, VOCAB - 1],
        "impact_weights": [0.5, 1.5],
        "n_tokens": 3,
    }


def fill(path: Path, rows: list[Row], retriever: MaskedRetriever | LibraryRetriever = MASKED) -> PassageIndex:
    manifest = IndexManifest(
        retriever=retriever, weights="w", hidden_size=HIDDEN, vocab_size=VOCAB, created="2026-01-01T00:00:00+00:00"
    )
    index = PassageIndex.create(str(path / "index"), manifest)
    for row in rows:
        table = pa.Table.from_pylist([row], schema=passage_schema(HIDDEN))
        # As in an index from before such rows were refused.
        with patch("diffretriever.index.writer.refuse_to_write"):
            receipt = write_block(index.uri, table)
        Committer(index).commit({"key": receipt}, [])
    return index


def problems_of(index: PassageIndex) -> list[Problem]:
    verification = inspect(index, check=True).verification
    assert verification is not None
    return verification.problems


def scaled(row: Row, factor: float) -> Row:
    return {"reps": [vector * np.float16(factor) for vector in row["reps"]]}  # type: ignore[attr-defined]


def test_a_sound_index_has_no_problems(tmp_path: Path) -> None:
    index = fill(tmp_path, [good_row("a"), good_row("bb")])
    verification = inspect(index, check=True).verification
    assert verification is not None
    assert (verification.rows, verification.vectors) == (2, 4)
    assert verification.problems == []


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda _: {"text": "another text"}, "digest"),
        (lambda _: {"reps": [], "slot_tokens": []}, "vectors is not 1 to 2"),
        (lambda row: {"reps": [*row["reps"], row["reps"][0]], "slot_tokens": [1, 2, 3]}, "vectors is not 1 to 2"),
        (lambda _: {"slot_tokens": [1]}, "slot tokens differ in number"),
        (lambda row: scaled(row, np.nan), "not finite"),
        (lambda row: scaled(row, 0.998), "not of length 1"),
        (lambda _: {"impact_ids": [0]}, "impact ids and weights differ in number"),
        (lambda _: {"impact_ids": [7, 6]}, "do not ascend"),
        (lambda _: {"impact_ids": [0, VOCAB]}, "vocabulary of 50"),
        (lambda _: {"impact_weights": [0.0, 1.0]}, "not positive and finite"),
        (lambda _: {"impact_weights": [np.nan, 1.0]}, "not positive and finite"),
    ],
)
def test_verification_names_a_damaged_passage(damage: Callable[[Row], Row], kind: str, tmp_path: Path) -> None:
    rows = [good_row("a"), good_row("bb"), good_row("ccc")]
    index = fill(tmp_path, [rows[0], rows[1] | damage(rows[1]), rows[2]])
    found = problems_of(index)
    assert [(kind in p.kind, p.total, p.first) for p in found] == [(True, 1, ["bb"])], found


def test_verification_names_ten_passages_and_counts_all(tmp_path: Path) -> None:
    ids = [f"d{n:02}" for n in range(12)]
    (problem,) = problems_of(fill(tmp_path, [good_row(i) | {"digest": b"0" * 16} for i in ids]))
    assert (problem.total, problem.first) == (12, ids[:10])


def test_verification_reports_a_repeated_id(tmp_path: Path) -> None:
    (problem,) = problems_of(fill(tmp_path, [good_row("a"), good_row("bb"), good_row("a")]))
    assert problem == Problem(kind="an id occurs more than once", total=1, first=["a"])


@pytest.mark.parametrize("kind", [CODES, POSTINGS])
def test_verification_reports_a_changed_derived_file(kind: FileKind[Any], tmp_path: Path) -> None:
    index = fill(tmp_path, [good_row("a")])
    report = inspect(index, check=False)
    assert report.postings is not None
    assert (report.postings.missing_fragments, report.postings.missing_rows, report.postings.bytes) == (1, 1, 0)
    complete(index)
    assert problems_of(index) == []
    folder = kind.folder_of(index, index.fragments()[0]).path
    file = next(file for file in sorted(folder.glob("*.bin")) if file.stat().st_size)
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    (problem,) = problems_of(index)
    assert problem.kind == f"the {kind.name} of a fragment are damaged"
    assert file.name in problem.first[0]


def test_verification_reports_a_removed_newest_manifest(tmp_path: Path) -> None:
    index = fill(tmp_path, [good_row("a"), good_row("bb")])
    (
        Path(index.uri) / "passages.lance" / "_versions" / manifests_of(f"{index.uri}/passages.lance")[index.version]
    ).unlink()
    report = inspect(PassageIndex.open(index.uri), check=True)
    assert report.verification is not None
    (problem,) = report.verification.problems
    assert problem.kind == "the newest versions are missing"
    assert f"version {index.version} was committed" in problem.first[0]
