"""The tables as data: they fit the presets, and the figures that the paper prints twice agree."""

from __future__ import annotations

import math

import pytest

from diffretriever.presets import list_presets, load_retriever
from diffretriever.protocols import with_settings
from diffretriever.schemas.retriever import Bm25Retriever, MaskedRetriever
from diffretriever.studies.reproduction.config import PublishedRow
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7, MINI, PAPER_TABLES, load_table, load_tables

TABLES = (*PAPER_TABLES, "decomposition", MINI)
INDOMAIN = ("msmarco-dev", "dl19", "dl20")
N_FIGURES = {
    "main-indomain": 162,
    "main-beir7": 176,
    "multistep-indomain": 72,
    "multistep-beir7": 192,
    "prompt-comparison": 36,
    "compressed-storage": 200,
    "beir7-modes": 432,
    "dense-baselines": 143,
    "index-storage": 4,
    "decomposition": 108,
    "mini": 34,
}
FORWARD = {"1": 1, "2": 2}


def values(row: PublishedRow) -> list[float | None]:
    return [v for modes in row.figures.values() for measures in modes.values() for v in measures.values()]


def test_every_table_is_there_with_all_its_figures() -> None:
    assert {name: sum(len(values(row)) for row in load_table(name).rows) for name in TABLES} == N_FIGURES
    assert [table.id for table in load_tables(())] == list(TABLES)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_figures_are_of_the_measure_of_their_collection(name: str) -> None:
    for row in load_table(name).rows:
        for collection, modes in row.figures.items():
            assert collection in {*INDOMAIN, *BEIR7, AVERAGE, "msmarco"}
            expected = "MRR@10" if collection == "msmarco-dev" else "nDCG@10"
            for measures in modes.values():
                assert set(measures) <= {expected, "GiB", "MiB", "ratio"}
                assert all(v is not None and (m != expected or 0 < v < 1) for m, v in measures.items())


@pytest.mark.parametrize("name", TABLES)
def test_presets_exist_and_are_what_the_row_says(name: str) -> None:
    for row in load_table(name).rows:
        if row.preset is None:
            continue
        assert row.preset in list_presets()
        config = with_settings(load_retriever(row.preset), row.settings)
        tuned = not isinstance(config, Bm25Retriever) and config.backbone.adapter is not None
        if row.regime is not None:
            assert (row.regime == "fine-tuned") == (tuned or row.needs_adapter), row.id
        if isinstance(config, MaskedRetriever):
            assert config.steps == FORWARD.get(row.forward_passes or "", 1)
            assert ("single" in row.variant) == (str(config.budget) == "q1p1") or name == MINI


def test_a_mean_of_seven_collections_is_what_the_paper_prints() -> None:
    for name in ("main-beir7", "beir7-modes", "multistep-beir7", "dense-baselines"):
        for row in load_table(name).rows:
            for mode, printed in row.figures[AVERAGE].items():
                parts = [row.figures[collection][mode]["nDCG@10"] for collection in BEIR7]
                mean = math.fsum(part for part in parts if part is not None) / len(BEIR7)
                # Each figure is rounded to .001, the average as well.
                assert mean == pytest.approx(printed["nDCG@10"], abs=0.001 + 1e-9), f"{name} {row.id} {mode}"


def test_an_unknown_table_suggests() -> None:
    with pytest.raises(ValueError, match="Did you mean 'main-beir7'"):
        load_tables(["main-beir"])
