from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.collections import Run, read_qrels, read_run, write_run

IDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="\ufeff"), min_size=1)
Scores: TypeAlias = dict[str, dict[str, float]]
SCORES = st.floats(allow_nan=False, allow_infinity=False)
RUNS = st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=6), max_size=4)


def ranked(run: Scores) -> list[tuple[str, list[tuple[str, float]]]]:
    return [(query, sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))) for query, hits in run.items()]


@settings(max_examples=150, deadline=None)
@given(run=RUNS)
def test_runs_round_trip(tmp_path_factory: pytest.TempPathFactory, run: Scores) -> None:
    path = tmp_path_factory.getbasetemp() / "round.trec"
    write_run(path, [Run.of(run)], "tag")
    back = read_run(path)
    assert [(query, list(hits.items())) for query, hits in back.items()] == ranked(run)
    bits = {(query, name): struct.pack("d", score) for query, hits in run.items() for name, score in hits.items()}
    assert bits == {(q, name): struct.pack("d", score) for q, hits in back.items() for name, score in hits.items()}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        columns = line.split(" ")
        assert len(columns) == 6
        assert set(columns[4]) <= set("-0123456789.")


def test_the_format_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.trec"
    run = Run.of({"q": {"a": 1.0, "b": 1e-07}, "none": {}, "r": {"a": -0.1}})
    write_run(path, [run], "hybrid")
    assert path.read_text() == "q Q0 a 1 1.0 hybrid\nq Q0 b 2 0.0000001 hybrid\nr Q0 a 1 -0.1 hybrid\n"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("hits", "tag", "message"),
    [
        ([("q", [("a", float("nan"))])], "t", "not finite"),
        ([("q", [("a", 2.0), ("a", 1.0)])], "t", "'a' occurs twice"),
        ([("q", []), ("q", [])], "t", "query 'q' occurs twice"),
        ([("q", [("a", 1.0), ("b", 2.0)])], "t", "not ranked"),
        ([("q q", [])], "t", "bad id"),
        ([("q", [("", 1.0)])], "t", "bad id"),
        ([], "my tag", "bad id"),
    ],
)
def test_invalid_runs_are_not_written(
    tmp_path: Path, hits: list[tuple[str, list[tuple[str, float]]]], tag: str, message: str
) -> None:
    path = tmp_path / "run.trec"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        write_run(path, [Run.of_lists(hits)], tag)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("q Q0 a 1 0.5", "5 columns instead of 6"),
        ("q Q0 a b 1 0.5 t", "7 columns instead of 6"),
        ("q Q0 a one 0.5 t", "rank 'one' is not an integer"),
        ("q Q0 a 1 nan t", "score 'nan' is not a finite number"),
        ("q Q0 a 1 1e999 t", "score '1e999' is not"),
        ("q Q0 a 1 ٣ t", "score '٣' is not"),
        ("x Q0 b 2 0.5 t", "passage 'b' occurs twice"),
        ("q Q0 a\x00 1 0.5 t", "bad id"),
    ],
)
def test_malformed_runs_are_rejected(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "run.trec"
    path.write_text(f"x Q0 b 1 0.5 t\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"run\.trec:3: .*{reason}"):
        read_run(path)


def test_runs_of_other_tools_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfq\tQ0\ta\t0\t1.5e-3\tt\r\nq   Q0   b   1   +.5   t\r\n"))
    assert read_run(path) == {"q": {"a": 0.0015, "b": 0.5}}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_hits_are_ranked_by_score_and_id(tmp_path: Path, separator: str, end: str) -> None:
    rows = ["q Q0 c 1 0.5 t", "r Q0 a 9 1 t", "q Q0 a 3 0.5 t", "q Q0 b 2 2.25 t", "r Q0 b 1 -3 t"]
    path = tmp_path / "run"
    path.write_bytes("".join(row.replace(" ", separator) + end for row in rows).encode())
    found = read_run(path)
    assert [(query, [*hits.items()]) for query, hits in found.items()] == [
        ("q", [("b", 2.25), ("a", 0.5), ("c", 0.5)]), ("r", [("a", 1.0), ("b", -3.0)]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "q\ta\t1\nq\tb\t-1\n",
        "query-id\tcorpus-id\tscore\r\nq\ta\t1\r\n\r\nq\tb\t-1\r\n",
        "\ufeffquery-id\tcorpus-id\tscore\nq\ta\t1\nq\tb\t-1",
        "q 0 a 1\nq 0 b -1\n",
        "qid iter docid rel\nq 0 a 1\nq 0 b -1\n",
    ],
)
def test_formats_of_qrels(tmp_path: Path, content: str) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_bytes(content.encode())
    assert read_qrels(path) == {"q": {"a": 1, "b": -1}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("q a\n", "1: 2 columns instead of 3"),
        ("q 0 a 1 1\n", "1: 5 columns instead of 3"),
        ("q a 1\nq 0 b 1\n", "2: 4 columns, but the first line has 3"),
        ("q a 1\nquery-id corpus-id score\n", "2: relevance 'score' is not an integer"),
        ("q a yes\n", "1: relevance 'yes' is not an integer"),
        ("q a 1\nq a 0\n", "2: passage 'a' occurs twice"),
    ],
)
def test_malformed_qrels_are_rejected(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"qrels\.tsv:{reason}"):
        read_qrels(path)
