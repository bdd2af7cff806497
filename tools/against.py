"""Ways to rank, over several collections, against one of them: a table for a document, and the figure beside it.

It reads what `evaluate.py` leaves: a folder of results for each system on each collection, with the values of every
score in `per_query.parquet`.

Legend: N queries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from diffretriever.schemas.base import CommaSeparated, Model
from diffretriever.schemas.settings import JobConfig

_PANEL_INCHES, _ROW_INCHES, _LABEL_INCHES = 6.2, 0.34, 3.2


class Against(JobConfig):
    """Write differences from one way to rank: by collection, and over all queries with p and a 95% interval."""

    results: Path
    """Folder with a folder SYSTEM-COLLECTION for each system and collection, as `evaluate.py --output` writes one."""
    collections: CommaSeparated = Field(min_length=1)
    """Names of the collections, as the folders have them."""
    rows: CommaSeparated = Field(min_length=1)
    """SYSTEM:SCORE for each row, such as pooled:dense+bm25."""
    base: str
    """The row that the others are held against, likewise."""
    measure: str = "nDCG@10"
    """What to compare, as the results have it."""
    output: Path
    """Folder for against.md and against.png."""


class Row(Model):
    """One way to rank."""

    name: str
    means: tuple[float, ...]
    """By collection."""
    by_collection: tuple[float, ...]
    """Mean differences from the base."""
    difference: float
    """Mean over the queries of all collections."""
    interval: tuple[float, float]
    """Of that mean; bootstrap, 95%."""
    p: float
    """Paired t-test over all queries, two-sided."""


def main(config: Against) -> None:
    """Write table and figure, and print the table."""
    rows = [row_of(config, name) for name in config.rows]
    table = table_of(rows, config)
    config.output.mkdir(parents=True, exist_ok=True)
    (config.output / "against.md").write_text(table + "\n", "utf-8")
    (config.output / "against.png").write_bytes(figure_of(rows, config))
    print(table)
    print(f"figure: {config.output / 'against.png'}")


def row_of(config: Against, name: str) -> Row:
    """Compare one way to rank with the base.

    Raises:
        ValueError: a folder lacks its values, or they lack the score or the measure; or two that are compared are not
            of the same queries.
    """
    from diffretriever.evaluation.statistics import bootstrap_interval, t_test_p

    ours = [_values(config, name, collection) for collection in config.collections]
    theirs = [_values(config, config.base, collection) for collection in config.collections]
    for collection, own, other in zip(config.collections, ours, theirs, strict=True):
        if own.keys() != other.keys():
            raise ValueError(f"{name} and {config.base} are of other queries of {collection}: evaluate both again")
    means = tuple(float(np.mean([*own.values()])) for own in ours)
    found = [np.array([own[q] - other[q] for q in own]) for own, other in zip(ours, theirs, strict=True)]
    all_N = np.concatenate(found)
    return Row(
        name=name,
        means=means,
        by_collection=tuple(float(each.mean()) for each in found),
        difference=float(all_N.mean()),
        interval=bootstrap_interval(all_N),
        p=t_test_p(all_N),
    )


def _values(config: Against, name: str, collection: str) -> dict[str, float]:
    import pandas as pd

    system, _, score = name.partition(":")
    file = config.results / f"{system}-{collection}" / "per_query.parquet"
    if not file.is_file():
        raise ValueError(f"{file} is not there: evaluate {system or 'the system'} on {collection} with this --output")
    table = pd.read_parquet(file)
    table = table[(table["mode"] == score) & (table["measure"] == config.measure)]
    if table.empty:
        raise ValueError(f"{file} has no {config.measure} of '{score}': give rows as SYSTEM:SCORE")
    return dict(zip(table["query_id"], table["value"], strict=True))


def table_of(rows: list[Row], config: Against) -> str:
    """Return the table in Markdown."""
    from diffretriever.evaluation.formats.tables import markdown_table, p_value, points, with_interval

    cells = [
        [
            row.name.replace(":", " "),
            *map(points, row.means),
            "" if row.name == config.base else f"{with_interval(row.difference, row.interval)} {p_value(row.p)}",
        ]
        for row in rows
    ]
    return markdown_table(cells, [config.measure, *config.collections, "difference over all queries, p"])


def figure_of(rows: list[Row], config: Against) -> bytes:
    """Return a PNG: a line for each way to rank, with the interval of its difference and a dot for each collection."""
    from diffretriever.evaluation.figures import BLUE, GREY, HEAD_INCHES, INK, headed_figure, png, quiet

    shown = [row for row in rows if row.name != config.base]
    title = f"{config.measure} against {config.base.replace(':', ' ')}"
    subtitle = "mean difference over all queries with its bootstrap 95% interval; small dots: each collection"
    height = HEAD_INCHES + 0.5 + _ROW_INCHES * len(shown)
    figure = headed_figure(_LABEL_INCHES + _PANEL_INCHES, height, title, subtitle)
    panel = figure.subplots()
    quiet(panel, "x")
    panel.axvline(0, color=INK, linewidth=1)
    places = range(len(shown))
    for place, row in zip(places, shown, strict=True):
        panel.scatter(row.by_collection, [place] * len(row.by_collection), s=14, color=GREY, zorder=2)
        panel.plot(row.interval, (place, place), color=BLUE, linewidth=2.2, zorder=3, solid_capstyle="butt")
        panel.scatter([row.difference], [place], s=40, color=BLUE, zorder=4)
    panel.set_yticks(places, [row.name.replace(":", " ") for row in shown])
    panel.set_ylim(len(shown) - 0.5, -0.5)
    return png(figure)


if __name__ == "__main__":
    main(Against.from_command_line())
