"""Jobs that show what slots say, as programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffretriever.schemas.serve import Explanation
from diffretriever.studies.topics_config import IndexDescription
from tests.encoders.encoder_cases import PARTS
from tests.jobs.programs import run_job
from tests.jobs.test_command_lines import index as bm25_index  # noqa: F401 (a fixture)
from tests.serving.serving_cases import QUERIES, random_encoder, small_index


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    encoder = random_encoder(tmp_path_factory.mktemp("llada"), **PARTS)
    return small_index(encoder, str(tmp_path_factory.mktemp("index"))).uri


def test_search_explains_scores(place: str) -> None:
    done = run_job("search", "--index", place, "--query", QUERIES[0], "--top-k", 2, "--explain", "--words", 3)
    assert done.status == 0, done.stderr
    blocks = done.stdout.split("query slot 0 matched passage slot ")[1:]
    assert len(blocks) == 2
    for block in blocks:
        assert block.count("query slot") == 3
        lines = [line.strip() for line in block.splitlines()]
        said = [line for line in lines if line.startswith(("query:", "passage:"))]
        assert len(said) == 8
        assert all(line.count(",") == 2 for line in said)
        assert sum(line.startswith("reads:") for line in lines) == 4

    done = run_job("search", "--index", place, "--query", QUERIES[0], "--top-k", 2, "--explain", "--json-output")
    explained = [Explanation.model_validate(row["explanation"]) for row in json.loads(done.stdout)]
    assert [len(reading) for each in explained for reading in each.query_readings] == [8] * 8


def test_describe_index_prints_slots_and_topics(place: str) -> None:
    done = run_job("describe_index", "--index", place, "--sample", 30, "--topics", 3, "--words", 4)
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"30 of 60 passages of {place}")
    assert "\n  slot 1: " in done.stdout
    assert "\n     such as title " in done.stdout
    done = run_job("describe_index", "--index", place, "--topics", 3, "--json-output")
    found = IndexDescription.model_validate_json(done.stdout)
    assert found.read == 60
    assert len(found.topics) <= 3


def test_bm25_has_no_slots_to_describe(bm25_index: Path) -> None:  # noqa: F811
    done = run_job("describe_index", "--index", bm25_index)
    assert done.status == 1
    assert "has no vectors" in done.stderr
    done = run_job("search", "--index", bm25_index, "--query", "heat", "--explain")
    assert done.status == 1
    assert done.stderr.startswith("error: bm25 encodes nothing: it goes by the words of texts")
