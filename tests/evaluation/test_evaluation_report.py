import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from diffretriever.collections import Run
from diffretriever.evaluation.comparison import compared
from diffretriever.evaluation.comparison_page import comparison_table, write_comparison
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.evaluation.report import evaluation_report, write_evaluation
from diffretriever.schemas.evaluate import ComparisonReport, EvaluationReport

QRELS = {f"q{i}": {f"d{i}": 1} for i in range(12)}
FACTS: dict[str, Any] = {
    "retriever": "diffretriever-minilm q4p16",
    "command": "python jobs/evaluate.py --index index --collection small --output out",
    "config": {"index": "index", "measures": ["nDCG@10", "MRR@10"], "top_k": 1000},
    "collection": "small",
    "split": "test",
    "fingerprint": "0123456789abcdef",
    "rows": 1200,
}
TEXTS = {f"q{i}": f"what | is\nnumber {i}? " + "and more " * 20 for i in range(12)}


def result(offset: int, measures: tuple[str, ...] = ("nDCG@10", "MRR@10")) -> EvaluationResult:
    """Find the passage of query i at rank i + 1 + offset."""
    run = {
        q: {**{f"x{r}": -float(r) for r in range(i + offset)}, f"d{i}": -float(i + offset)} for i, q in enumerate(QRELS)
    }
    return evaluate(Run.of(run), QRELS, measures)


RESULTS = {"dense": result(1), "sparse": result(2), "hybrid": result(0)}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    write_evaluation(folder, evaluation_report(RESULTS, **FACTS), RESULTS, TEXTS)
    return folder


def test_metrics_json_holds_the_report(output: Path) -> None:
    text = (output / "metrics.json").read_text("utf-8")
    report = EvaluationReport.model_validate_json(text)
    values = json.loads(text)
    assert values["measures"] == {mode: r.mean for mode, r in RESULTS.items()}
    assert list(values["measures"]["dense"]) == ["nDCG@10", "MRR@10"]
    assert (report.queries, report.rows, report.split) == (12, 1200, "test")
    assert report.config == FACTS["config"]
    low, high = report.intervals["hybrid"]["MRR@10"]
    assert low < report.measures["hybrid"]["MRR@10"] < high


def test_per_query_values_round_trip(output: Path) -> None:
    rows = parquet.read_table(output / "per_query.parquet").to_pylist()
    assert len(rows) == 12 * 3 * 2
    for row in rows:
        assert row["value"] == RESULTS[row["mode"]].per_query[row["measure"]][row["query_id"]]


def test_the_page_tells_what_was_run(output: Path) -> None:
    page = (output / "report.md").read_text("utf-8")
    assert page.startswith("# diffretriever-minilm q4p16 on small (test)\n")
    assert "| mode | nDCG@10 | MRR@10 |" in page
    assert "| passages | 1,200 |" in page
    assert "](report.png)" in page
    assert FACTS["command"] in page
    config = page.partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(config) == FACTS["config"]
    hardest = page.partition("## Hardest")[2].partition("## Easiest")[0]
    assert "by nDCG@10 of hybrid, the best mode" in hardest
    assert [line.split(" | ")[0] for line in hardest.splitlines()[4:6]] == ["| q10", "| q11"]
    assert "what \\| is number 10? and more" in hardest
    easiest = page.partition("## Easiest")[2]
    assert easiest.splitlines()[4].startswith("| q0 | ")


def test_equal_inputs_give_equal_files_but_for_the_time(output: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("an earlier report")
    write_evaluation(tmp_path, evaluation_report(RESULTS, **FACTS), RESULTS, TEXTS)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["metrics.json", "per_query.parquet", "report.md", "report.png"]
    for name in names[1:]:
        assert (tmp_path / name).read_bytes() == (output / name).read_bytes()
    old, new = (json.loads((folder / names[0]).read_text("utf-8")) for folder in (output, tmp_path))
    assert {**old, "created": ""} == {**new, "created": ""}


def test_comparison_of_systems(tmp_path: Path) -> None:
    systems = {"BM25": {"sparse": result(2)}, "DiffRetriever": RESULTS}
    report = compared("All of them", systems, "python jobs/demo.py")
    write_comparison(tmp_path, report, systems)
    labels = ["BM25", "DiffRetriever dense", "DiffRetriever sparse", "DiffRetriever hybrid"]
    table = comparison_table(systems)
    assert [line.rsplit(maxsplit=2)[0] for line in table.splitlines()[2:]] == labels
    assert ComparisonReport.model_validate_json((tmp_path / "comparison.json").read_text("utf-8")) == report
    assert report.measures["BM25"]["sparse"] == result(2).mean
    page = (tmp_path / "comparison.md").read_text("utf-8")
    assert all(f"| {letter} | {label} |" in page for letter, label in zip("abcd", labels, strict=True))
    assert "](comparison.png)" in page
    assert list(report.better_than["MRR@10"]) == labels
    assert all((tmp_path / f"comparison.{end}").is_file() for end in ("html", "tex"))
    per_query = parquet.read_table(tmp_path / "per_query.parquet")
    assert per_query.column_names == ["query_id", "system", "measure", "value"]
    assert len(per_query) == 4 * 2 * 12
    assert (tmp_path / "comparison.png").stat().st_size > 0


def test_systems_must_be_comparable() -> None:
    one = {"one": {"dense": result(0)}}
    with pytest.raises(ValueError, match="'two' and 'one' have different measures"):
        compared("t", {**one, "two": {"dense": result(0, ("MRR@10",))}}, "c")
    fewer = evaluate(Run.of({}), {"q0": {"d0": 1}}, ("nDCG@10", "MRR@10"))
    with pytest.raises(ValueError, match="'two' and 'one' have different queries"):
        compared("t", {**one, "two": {"dense": fewer}}, "c")
