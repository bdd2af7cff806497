"""The report and the listing of a dry run, as text for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from diffretriever.evaluation.tables import Cell, format_table, markdown_table
from diffretriever.reproduction.plan import DONE, READY, Plan
from diffretriever.statistics.significance import ALPHA
from schemas.reproduce import PairedTest, ReproducedCell, ReproducedRow, ReproducedTable, ReproductionReport

_MARK = " (stand-in)"
_CITED = " (reported by others, cited by the paper)"
_MODES = ("dense", "sparse", "hybrid", "compressed")
_SMALLEST_P = 0.001


def reproduction_page(report: ReproductionReport) -> str:
    """Return the report in Markdown: a section for each table, a table for each of its collections."""
    parts = ["# The paper's tables, and ours", *_warning(report)]
    parts += [f"- {note}" for note in report.notes]
    for table in report.tables:
        parts += [f"## {table.id}", f"{table.caption} In the paper: {table.place}. {_reading(table)}"]
        for collection in dict.fromkeys(cell.collection for row in table.rows for cell in row.cells):
            parts += [f"### {table.id}: {collection}", _collection_table(table, collection)]
    parts += ["## Command", f"```\n{report.command}\n```"]
    return "\n\n".join(parts) + "\n"


def terminal_table(report: ReproductionReport) -> str:
    """Return what was measured as plain text: a line for each figure."""
    rows: list[list[Cell]] = [
        [table.id, _label(row), cell.collection, cell.mode, cell.measure, *_values(cell), _tests(table, [cell])]
        for table in report.tables
        for row in table.rows
        for cell in row.cells
        if cell.ours is not None
    ]
    if not rows:
        return "no row could be run; --dry-run lists what each of them needs"
    text = format_table(
        rows, ["table", "row", "collection", "mode", "measure", "paper", "ours", "difference", "paired tests"]
    )
    return "\n".join([text, *_warning(report), *report.notes])


def listing(plan: Plan) -> str:
    """Return every row of every table with its collections, grouped by what their status is."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for table, rows in plan.tables:
        lines.append(f"{table.id}: {table.caption} ({table.place})")
        for planned in rows:
            preset = "" if planned.row.preset is None else f" [{planned.row.preset}]"
            lines.append(f"  {planned.row.label}{_CITED if planned.row.reported else ''}{preset}")
            by_status: dict[str, list[str]] = defaultdict(list)
            for collection in planned.tasks:
                by_status[planned.status(collection)].append(collection)
            lines += [f"    {', '.join(names)}: {status}" for status, names in by_status.items()]
            counts.update({status: len(names) for status, names in by_status.items()})
        lines.append("")
    blocked = counts.total() - counts[READY] - counts[DONE]
    return "\n".join([*lines, f"{counts[READY]} ready, {counts[DONE]} done, {blocked} cannot be run"])


def _warning(report: ReproductionReport) -> list[str]:
    if not report.stand_ins:
        return []
    places = "; ".join(f"{folder} in place of {source}" for source, folder in report.stand_ins.items())
    used = f"STAND-INS WERE USED: {places}. Rows marked{_MARK} were run with those weights."
    return [f"**{used} Unless they are the published ones, their numbers are NOT comparable with the paper's.**"]


def _reading(table: ReproducedTable) -> str:
    cells = "Cells: paper / ours (difference). " if _is_published(table) else ""
    correction = ", Holm-corrected within a column" if table.correction == "holm" else ""
    return f"{cells}Paired tests are two-sided t-tests over queries{correction}; * p < {ALPHA}."


def _is_published(table: ReproducedTable) -> bool:
    return any(cell.published is not None for row in table.rows for cell in row.cells)


def _collection_table(table: ReproducedTable, collection: str) -> str:
    cells = [cell for row in table.rows for cell in row.cells if cell.collection == collection]
    found = dict.fromkeys((cell.mode, cell.measure) for cell in cells)
    columns = sorted(found, key=lambda column: _MODES.index(column[0]))
    rows: list[list[Cell]] = []
    for row in table.rows:
        own = {(cell.mode, cell.measure): cell for cell in row.cells if cell.collection == collection}
        if own:
            shown = [_shown(table, own[column]) if column in own else "" for column in columns]
            rows.append([_label(row), *shown, _tests(table, list(own.values())), _status(row, collection)])
    return markdown_table(rows, ["row", *(f"{mode} {measure}" for mode, measure in columns), "paired tests", "status"])


def _label(row: ReproducedRow) -> str:
    return f"{row.label}{_CITED if row.reported else ''}{_MARK if row.stand_ins else ''}"


def _status(row: ReproducedRow, collection: str) -> str:
    if collection in row.status:
        return row.status[collection]
    missing = sum(status != DONE for status in row.status.values())
    return f"{missing} collections missing" if missing else DONE


def _shown(table: ReproducedTable, cell: ReproducedCell) -> str:
    paper, ours, difference = _values(cell)
    if not _is_published(table):
        return ours
    return f"{paper} / {ours}" + (f" ({difference})" if difference else "")


def _values(cell: ReproducedCell) -> tuple[str, str, str]:
    difference = "" if cell.difference is None else f"{cell.difference:+.3f}"
    return _number(cell.published, cell.measure), _number(cell.ours, cell.measure), difference


def _number(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if "@" in measure else f"{value:g}"


def _tests(table: ReproducedTable, cells: Sequence[ReproducedCell]) -> str:
    labels = {row.id: row.label for row in table.rows}
    by_row: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        for test in cell.tests:
            by_row[test.against].append(f"{cell.mode} {_p(test)}")
    return "; ".join(f"against {labels[other]}: {', '.join(tests)}" for other, tests in by_row.items())


def _p(test: PairedTest) -> str:
    value = f"p = {test.p:.3f}" if test.p >= _SMALLEST_P else f"p < {_SMALLEST_P}"
    return f"{value} *" if test.significant else value
