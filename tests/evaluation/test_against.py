"""Ways to rank held against one of them over several collections, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from tools.against import Against, main, row_of

VALUES = {
    ("a", "one"): {"dense": [0.1, 0.5, 0.9], "dense+bm25": [0.3, 0.5, 0.8]},
    ("a", "two"): {"dense": [0.2, 0.4], "dense+bm25": [0.6, 0.9]},
    ("b", "one"): {"hybrid": [0.3, 0.6, 1.0]},
    ("b", "two"): {"hybrid": [0.7, 0.8]},
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for (system, collection), modes in VALUES.items():
        rows = [
            {"query_id": f"q{number}", "mode": mode, "measure": "nDCG@10", "value": value}
            for mode, values in modes.items()
            for number, value in enumerate(values)
        ]
        folder = tmp_path / f"{system}-{collection}"
        folder.mkdir()
        pd.DataFrame(rows).to_parquet(folder / "per_query.parquet")
    return tmp_path


def config(results: Path, **changes: object) -> Against:
    values: dict[str, object] = {
        "results": results,
        "collections": ("one", "two"),
        "rows": ("a:dense", "a:dense+bm25", "b:hybrid"),
        "base": "a:dense+bm25",
        "output": results / "out",
    }
    return Against.model_validate(values | changes)


def test_differences_by_hand(results: Path) -> None:
    row = row_of(config(results), "b:hybrid")
    differences = np.array([0.0, 0.1, 0.2, 0.1, -0.1])
    assert row.means == pytest.approx((1.9 / 3, 0.75))
    assert row.by_collection == pytest.approx((0.1, 0.0))
    assert row.difference == pytest.approx(differences.mean())
    assert row.p == pytest.approx(scipy.stats.ttest_1samp(differences, 0).pvalue)
    assert row.interval[0] < row.difference < row.interval[1]


def test_table_and_figure_are_written(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(config(results))
    table = (results / "out" / "against.md").read_text()
    assert table.strip() in capsys.readouterr().out
    header, _, first, base, _ = table.strip().splitlines()
    assert header == "| nDCG@10 | one | two | difference over all queries, p |"
    assert first.startswith("| a dense | .500 | .300 | −.200 [")  # noqa: RUF001 (a minus)
    assert base == "| a dense+bm25 | .533 | .750 |  |"
    assert (results / "out" / "against.png").read_bytes()[1:4] == b"PNG"
