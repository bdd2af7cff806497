"""The paper's layouts: every figure has its place, marks and emphasis are those that the paper prints."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from diffretriever.evaluation.formats.pages import Section, Table, TableCell, html_page, latex_page, markdown_page
from diffretriever.studies.reproduction.config import PublishedRow, PublishedTable
from diffretriever.studies.reproduction.layouts import layout_of
from diffretriever.studies.reproduction.layouts.compression import size_text
from diffretriever.studies.reproduction.layouts.marks import Marking, MarkRule, compare_marks, marks_of_ours
from diffretriever.studies.reproduction.report import PairedTest, ReproducedCell, ReproducedRow, ReproducedTable
from diffretriever.studies.reproduction.sizes import index_size
from diffretriever.studies.reproduction.tables import MINI, PAPER_TABLES, load_table
from tests.evaluation.tex import faults

PRINTED = tuple(name for name in PAPER_TABLES if name != "index-storage")
N_MARKED = {
    "main-indomain": 22,
    "main-beir7": 35,
    "multistep-indomain": 18,
    "multistep-beir7": 73,
    "prompt-comparison": 20,
    "compressed-storage": 24,
    "beir7-modes": 114,
    "dense-baselines": 0,
}
Measure = Callable[[str, float | None], float | None]


def measured(table: PublishedTable, ours: Measure = lambda _, __: None) -> ReproducedTable:
    """What a run would have given: `ours` makes a value of a row's id and its published value."""
    rows = []
    for row in table.rows:
        cells = [
            ReproducedCell(
                collection=collection,
                mode=mode,
                measure=measure,
                published=value,
                ours=(own := ours(row.id, value)),
                difference=None if own is None or value is None else own - value,
                tests=(),
            )
            for collection, modes in row.figures.items()
            for mode, measures in modes.items()
            for measure, value in measures.items()
        ]
        rows.append(ReproducedRow(id=row.id, label=row.id, reported=False, stand_ins={}, status={}, cells=tuple(cells)))
    return ReproducedTable(
        id=table.id, place=table.place, caption=table.caption, correction=table.correction, rows=tuple(rows)
    )


def cells(tables: list[Table]) -> list[TableCell]:
    return [cell for table in tables for row in table.cells() for cell in row]


@pytest.mark.parametrize("name", PRINTED)
def test_every_published_score_has_its_place(name: str) -> None:
    table = load_table(name)
    found = list(layout_of(table).tables(table, [measured(table)]))
    printed = [text for cell in cells(found) for text in re.findall(r"(?<!\d)\.\d{3}", cell.text)]
    scores = [c.published for row in measured(table).rows for c in row.cells if "@" in c.measure]
    assert sorted(printed) == sorted(f"{value:.3f}"[1:] for value in scores if value is not None)


@pytest.mark.parametrize("name", PRINTED)
def test_marks_are_the_papers_and_stand_where_their_rule_applies(name: str) -> None:
    table = load_table(name)
    marking = layout_of(table).marking
    figures = {row.id: row.figures for row in table.rows}
    found = 0
    for row, collections in marking.printed.items():
        for collection, modes in collections.items():
            for mode, signs in modes.items():
                assert mode in figures[row][collection]
                found += 1
                for sign in signs:
                    assert any(rule.sign == sign and row in rule.pairs for rule in marking.rules), (row, sign)
    assert found == N_MARKED[name]
    for rule in marking.rules:
        assert {*rule.pairs, *rule.pairs.values()} <= figures.keys()


@pytest.mark.parametrize("name", [*PRINTED, "index-storage", MINI])
def test_every_table_comes_out_in_every_format(name: str) -> None:
    table = load_table(name)
    shown = list(layout_of(table).tables(table, [measured(table, lambda _, value: (value or 0.4) + 0.02)]))
    for page in (markdown_page, latex_page, html_page):
        text = page("a title", [Section("a section", shown)])
        assert all(each.title in text for each in shown)
    assert faults(latex_page("a title", [Section("a section", shown)])) == []


def test_ours_stands_under_the_papers_with_its_own_emphasis() -> None:
    table = load_table("main-indomain")
    values = {"zero-shot-bm25": 0.3, "zero-shot-diffretriever-dream-multi": 0.21}
    result = measured(table, lambda row, _: values.get(row))
    (shown,) = layout_of(table).tables(table, [result])
    assert len(shown.frame) == len(table.rows) + 2
    bm25, dream = (row[shown.n_labels :] for row in shown.cells() if row[shown.n_labels - 1].text == "ours")
    assert [(cell.text, cell.bold, cell.shade) for cell in bm25[:3]] == [
        ("—", False, ""),
        (".300", True, "above3"),
        ("—", False, ""),
    ]
    assert [(cell.text, cell.bold, cell.shade) for cell in dream[:3]] == [
        (".210", False, "above2"),
        (".210", False, "above3"),
        (".210", False, "below1"),
    ]


def test_a_sign_needs_its_level_and_its_direction() -> None:
    rule = MarkRule(sign="†", meaning="better", alpha=0.05, sense="better", pairs={"a": "b"})
    either = rule.model_copy(update={"sign": "x", "sense": "different"})
    strict = either.model_copy(update={"sign": "y", "alpha": 0.01})
    marking = Marking(rules=(rule,), printed={"a": {"nq": {"dense": "†"}}})
    assert signs(marking, 0.03, 0.1) == "†"
    assert signs(marking, 0.03, -0.1) == ""
    assert signs(marking, 0.06, 0.1) == ""
    assert signs(Marking(rules=(either, strict)), 0.03, -0.1) == "x"
    assert signs(Marking(rules=(either, strict)), 0.001, -0.1) == "y", "the stricter sign alone"
    turned = Marking(rules=(rule.model_copy(update={"pairs": {"b": "a"}}),))
    assert marks_of_ours(turned, compared(0.03, -0.1)) == {("b", "nq", "dense"): "†"}
    assert re.search(
        "agree in 0 of 1 cases. Only in the paper: † a nq dense.", compare_marks(marking, compared(0.03, -0.1))
    )


def signs(marking: Marking, p: float, difference: float) -> str:
    return marks_of_ours(marking, compared(p, difference)).get(("a", "nq", "dense"), "")


def compared(p: float, difference: float) -> ReproducedTable:
    """Row `a` tested against `b` on one collection."""
    rows = tuple(
        PublishedRow(id=n, system=n, variant=n, figures={"nq": {"dense": {"nDCG@10": None}}}) for n in ("a", "b")
    )
    table = measured(PublishedTable(id="t", place="Table 0", caption="", rows=rows), lambda _, __: 0.5)
    a, b = table.rows
    test = PairedTest(against="b", difference=difference, p=p, significant=p < 0.05)
    tested = a.model_copy(update={"cells": (a.cells[0].model_copy(update={"tests": (test,)}),)})
    return table.model_copy(update={"rows": (tested, b)})


def test_the_missing_step_is_under_the_table_of_compressed_scores() -> None:
    table = load_table("compressed-storage")
    (found,) = layout_of(table).tables(table, [measured(table)])
    assert any(note.startswith("Missing here: the third step") for note in found.notes)


def test_sizes_by_arithmetic_are_the_papers_for_large_corpora() -> None:
    """Small ones differ: the paper's files hold centroids as well."""
    for row in load_table("compressed-storage").rows:
        for collection, modes in row.figures.items():
            before, after = (_bytes(modes[mode]) for mode in ("dense", "compressed"))
            size = index_size(row, collection)
            # The paper has two digits or three.
            assert size.zstd == pytest.approx(before, rel=0.12)
            if size.raw > 1 << 32:
                assert size.compressed == pytest.approx(after, rel=0.1), f"{row.id} {collection}"
    assert size_text(47.2 * 2**30) == "47G"
    assert size_text(7.41 * 2**30) == "7.4G"
    assert size_text(131 * 2**20) == "131M"
    assert size_text(1536) == "1.5K"


def _bytes(measures: dict[str, float | None]) -> float:
    unit = "GiB" if "GiB" in measures else "MiB"
    return (measures[unit] or 0.0) * 2 ** (30 if unit == "GiB" else 20)
