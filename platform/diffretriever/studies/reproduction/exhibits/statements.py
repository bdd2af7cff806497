"""Numbers that the paper says in words: from its own tables where they follow from them, and from ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from typing import NamedTuple, TypeAlias

import pandas as pd
import yaml

from diffretriever.evaluation.formats.pages import NO_VALUE, Table
from diffretriever.evaluation.formats.tables import points, signed
from diffretriever.schemas.base import Model
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.exhibits.latency_quality import query_latency
from diffretriever.studies.reproduction.exhibits.oracles import our_bars
from diffretriever.studies.reproduction.exhibits.published import ANALYSES, BACKBONES
from diffretriever.studies.reproduction.exhibits.query_features import correlation
from diffretriever.studies.reproduction.layouts import layout_of
from diffretriever.studies.reproduction.layouts.marks import marks_of_ours
from diffretriever.studies.reproduction.sizes import IndexSize, index_size, size_of
from diffretriever.studies.reproduction.tables import AVERAGE, load_table

Score: TypeAlias = Callable[[str, str, str, str], float | None]
"""Table, row, collection and mode → score."""

_INDOMAIN = ("msmarco-dev", "dl19", "dl20")
_MODES = ("dense", "sparse", "hybrid")
_GIB = 1 << 30
_EN_DASH = "\N{EN DASH}"


class Statement(Model):
    """A number in the text."""

    id: str
    place: str
    """Section."""
    check: str
    """Name in `CHECKS`."""
    says: str
    paper: str


class Checked(NamedTuple):
    """What a check found."""

    tables: str | None
    """From the paper's own tables; None where it does not follow from them."""
    ours: str | None
    """From what was measured or computed here; None where something lacks."""


class Statements(Exhibit):
    """A line for each number."""

    def command(self, job: ReproduceJob) -> str:
        """Return the command that checks them all."""
        given = f"--collections-root COLLECTIONS {ANALYSES} --latencies latencies.json"
        return f"python jobs/reproduce.py {given} --output {job.output}"

    def lacks(self, findings: Findings) -> list[str]:
        """Return the statements without a number of ours."""
        missing = [statement.says for statement, found in checked(findings) if found.ours is None]
        return [f"{len(missing)} of {len(statements())}: {'; '.join(missing)}"] if missing else []

    def show(self, findings: Findings) -> Shown:
        """Show what the paper says, what its tables give, and ours."""
        found = checked(findings)
        rows = [
            [statement.place, statement.says, statement.paper, result.tables or NO_VALUE, result.ours or ""]
            for statement, result in found
        ]
        frame = pd.DataFrame(rows, columns=["Section", "What", "Text", "Its tables", "Ours"])
        caption = "What the text says, what follows from the paper's own tables, and ours."
        return Shown([Table(self.place, caption, frame, n_labels=2)])


@cache
def statements() -> tuple[Statement, ...]:
    """Return the file `statements.yaml`."""
    text = (files("diffretriever.studies.reproduction.exhibits") / "statements.yaml").read_text("utf-8")
    return tuple(Statement.model_validate(values) for values in yaml.safe_load(text))


def checked(findings: Findings) -> list[tuple[Statement, Checked]]:
    """Return every statement with what was found of it."""
    return [(statement, CHECKS[statement.check](findings)) for statement in statements()]


def published(table: str, row: str, collection: str, mode: str) -> float | None:
    """Return a score that the paper prints.

    Args:
        table: its name.
        row: id.
        collection: or the average.
        mode: of the score.
    """
    rows = {each.id: each for each in load_table(table).rows}
    measures = rows[row].figures.get(collection, {}).get(mode, {})
    return next((value for measure, value in measures.items() if "@" in measure), None)


def _both(count: Callable[[Score], str | None], findings: Findings) -> Checked:
    return Checked(count(published), count(findings.score))


def _cells(score: Score, table: str, row: str) -> list[float] | None:
    """Return the nine scores of a row of an in-domain table, or None where one is missing."""
    found = [score(table, row, collection, mode) for collection in _INDOMAIN for mode in _MODES]
    values = [value for value in found if value is not None]
    return values if len(values) == len(found) else None


def _rounded(values: list[float]) -> list[float]:
    """Return the values as the tables print them."""
    return [round(value, 3) for value in values]


def _wins(score: Score, table: str, pairs: list[tuple[str, str]]) -> str | None:
    """Count the cells in which the first row of a pair is above the second, as printed."""
    wins = total = 0
    for first, second in pairs:
        one, two = _cells(score, table, first), _cells(score, table, second)
        if one is None or two is None:
            return None
        wins += sum(a > b for a, b in zip(_rounded(one), _rounded(two), strict=True))
        total += len(one)
    return f"{wins} of {total}"


def _multi_below_single(findings: Findings) -> Checked:
    names = [f"zero-shot-promptreps-{backbone}" for backbone in ("qwen2.5", "llama3")]
    return _both(lambda score: _wins(score, "main-indomain", [(f"{n}-single", f"{n}-multi") for n in names]), findings)


def _prompts(backbone: str, better: str, findings: Findings) -> Checked:
    worse = {"few": "three", "three": "few"}[better]
    return _both(
        lambda score: _wins(score, "prompt-comparison", [(f"{backbone}-{better}", f"{backbone}-{worse}")]), findings
    )


def _significant_gains(findings: Findings) -> Checked:
    marking = layout_of(load_table("main-indomain")).marking
    rows = [f"zero-shot-diffretriever-{backbone}-multi" for backbone in ("dream", "llada")]
    printed = sum("†" in signs for row in rows for modes in marking.printed[row].values() for signs in modes.values())
    total = len(rows) * len(_INDOMAIN) * len(_MODES)
    measured = next(iter(findings.tables("main-indomain")), None)
    complete = all(
        _cells(findings.score, "main-indomain", row[: -len("multi")] + kind)
        for row in rows
        for kind in ("multi", "single")
    )
    if measured is None or not complete:
        return Checked(f"{printed} of {total}", None)
    ours = marks_of_ours(marking, measured)
    found = sum("†" in signs for (row, _, _), signs in ours.items() if row in rows)
    return Checked(f"{printed} of {total}", f"{found} of {total}")


def _best_columns(findings: Findings) -> Checked:
    def count(score: Score) -> str | None:
        rows = [row for row in load_table("main-indomain").rows if row.regime == "fine-tuned"]
        best = 0
        for collection in _INDOMAIN:
            for mode in _MODES:
                found = {
                    row.id: score("main-indomain", row.id, collection, mode)
                    for row in rows
                    if mode in row.figures[collection]
                }
                values = {row: round(value, 3) for row, value in found.items() if value is not None}
                if len(values) < len(found):
                    return None
                best += values["fine-tuned-diffretriever-dream-multi"] == max(values.values())
        return f"{best} of {len(_INDOMAIN) * len(_MODES)}"

    return _both(count, findings)


def _averages(regime: str, first: str, second: str, findings: Findings) -> Checked:
    """Return the smallest and the largest difference of two scores' averages over BEIR."""

    def count(score: Score) -> str | None:
        differences = []
        for row in load_table("beir7-modes").rows:
            if row.regime == regime and {first, second} <= row.figures[AVERAGE].keys():
                one, two = (score("beir7-modes", row.id, AVERAGE, mode) for mode in (first, second))
                if one is None or two is None:
                    return None
                differences.append(one - two)
        return f"{points(min(differences))} to {points(max(differences))}"

    return _both(count, findings)


def _latencies(findings: Findings, method: str) -> list[float]:
    backbones = {"PromptReps": ("Qwen2.5", "LLaMA3"), "DiffRetriever": BACKBONES}[method]
    found = (query_latency(findings, method, backbone, "multi") for backbone in backbones)
    return [ms for ms in found if ms is not None]


def _latency(method: str, findings: Findings) -> Checked:
    found = _latencies(findings, method)
    return Checked(None, f"{min(found):.0f}{_EN_DASH}{max(found):.0f}" if found else None)


def _latency_ratio(findings: Findings) -> Checked:
    slow, fast = (_latencies(findings, method) for method in ("PromptReps", "DiffRetriever"))
    return Checked(None, f"{sum(slow) / len(slow) / (sum(fast) / len(fast)):.1f}" if slow and fast else None)


def _spread(name: str, findings: Findings) -> Checked:
    analysis = findings.analyses.get(name)
    grid = None if analysis is None else analysis.grid("msmarco-dev", "hybrid")
    return Checked(None, None if grid is None else points(grid.spread))


def _oracle(name: str, collection: str, findings: Findings) -> Checked:
    bars = our_bars(findings, name, collection)
    if not {"joint", "fine-tuned"} <= bars.keys():
        return Checked(None, None)
    return Checked(None, signed(bars["joint"] - bars["fine-tuned"]))


def _rho(mode: str, feature: str, findings: Findings) -> Checked:
    analyses = [findings.analyses[name] for name in BACKBONES if name in findings.analyses]
    found = [correlation(analysis, mode, feature) for analysis in analyses]
    values = [f"{value:+.2f}".replace("0.", ".") for value in found if value is not None]
    return Checked(None, ", ".join(values) if len(values) == len(BACKBONES) else None)


def _sizes(backbone: str) -> Iterator[IndexSize]:
    rows = {row.id: row for row in load_table("compressed-storage").rows}
    for kind in ("single", "multi"):
        yield index_size(rows[f"{backbone}-{kind}"], "msmarco-dev")


def _storage(backbone: str, findings: Findings) -> Checked:
    rows = {row.id: row for row in load_table("compressed-storage").rows}
    printed = [rows[f"{backbone}-{kind}"].figures["msmarco-dev"]["dense"]["GiB"] for kind in ("single", "multi")]
    ours = [f"{size.zstd / _GIB:.0f}" for size in _sizes(backbone)]
    return Checked(", ".join(f"{value:g}" for value in printed if value is not None), ", ".join(ours))


def _compression_ratio(findings: Findings) -> Checked:
    ratios = [
        modes["compressed"]["ratio"] or 0.0
        for row in load_table("compressed-storage").rows
        for modes in row.figures.values()
    ]
    size = size_of("msmarco", 4096, 4)
    return Checked(f"{min(ratios):g} to {max(ratios):g}", f"{size.zstd / size.compressed:.1f}")


CHECKS: dict[str, Callable[[Findings], Checked]] = {
    "multi_below_single": _multi_below_single,
    "significant_gains": _significant_gains,
    "best_columns": _best_columns,
    "latency_of_promptreps": partial(_latency, "PromptReps"),
    "latency_of_diffretriever": partial(_latency, "DiffRetriever"),
    "latency_ratio": _latency_ratio,
    "spread_of_dream": partial(_spread, "Dream"),
    "spread_of_llada": partial(_spread, "LLaDA"),
    "oracle_of_dream_on_dev": partial(_oracle, "Dream", "msmarco-dev"),
    "oracle_of_llada_on_dev": partial(_oracle, "LLaDA", "msmarco-dev"),
    "oracle_of_dream_on_beir": partial(_oracle, "Dream", AVERAGE),
    "oracle_of_llada_on_beir": partial(_oracle, "LLaDA", AVERAGE),
    "length_dense": partial(_rho, "dense", "length"),
    "length_sparse": partial(_rho, "sparse", "length"),
    "entropy_dense": partial(_rho, "dense", "entropy"),
    "entropy_sparse": partial(_rho, "sparse", "entropy"),
    "few_wins_on_llama3": partial(_prompts, "llama3", "few"),
    "three_wins_on_qwen": partial(_prompts, "qwen2.5", "three"),
    "hybrid_over_dense": partial(_averages, "zero-shot", "hybrid", "dense"),
    "dense_over_hybrid": partial(_averages, "fine-tuned", "dense", "hybrid"),
    "storage_of_dream": partial(_storage, "dream"),
    "storage_of_llada": partial(_storage, "llada"),
    "compression_ratio": _compression_ratio,
}
"""How each statement is checked."""
