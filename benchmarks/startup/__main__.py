"""What jobs take before and after their work, on 100 short passages, by two checkouts in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from pydantic import PositiveInt

from benchmarks import ROOT
from benchmarks.measuring import Benchmark, header, in_child, run
from benchmarks.startup.loops import Took

Side: TypeAlias = dict[str, Took]
"""Name of a job → what it took."""

Stages: TypeAlias = dict[str, dict[str, float]]
"""Name of a job → stage → seconds."""

_STAGE_COLUMNS = ("seconds", "baseline", "ours")
_COLUMNS = ("", "baseline", "ours", "ratio", "each ratio")
_CHARACTERS = range(20, 400)


class StartupBenchmark(Benchmark):
    """Time three jobs on so little that their start is most of it, by a baseline checkout and by this one in turn."""

    baseline: Path
    """Checkout to hold this one against; its jobs run with this Python."""
    retriever: str = "minilm-pooled"
    """Preset that encodes."""
    passages: PositiveInt = 100
    """Short ones of the built-in collection."""
    queries: PositiveInt = 20
    """That are evaluated."""
    repeats: PositiveInt = 3
    """Of the pairs, after one of each that does not count: it compiles."""


def main(config: StartupBenchmark) -> None:
    """Run the jobs, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    pairs: list[tuple[Side, Side]] = []
    with TemporaryDirectory() as temporary:
        corpus = _write_corpus(Path(temporary) / "corpus", config)
        for repeat in range(config.repeats + 1):
            base = _measure(config.baseline, config, corpus, Path(temporary) / f"baseline{repeat}")
            ours = _measure(ROOT, config, corpus, Path(temporary) / f"ours{repeat}")
            if repeat:
                pairs.append((base, ours))
            sys.stderr.write(f"{repeat}/{config.repeats}: {base}, {ours}\n")
        stages = [
            _stages(root, config, corpus, Path(temporary) / name)
            for name, root in (("staged baseline", config.baseline), ("staged ours", ROOT))
        ]
    rows = [_row(job, unit, pairs) for job in pairs[0][0] for unit in ("seconds", "cpu_seconds")]
    figures = [{"baseline": _plain(base), "ours": _plain(ours)} for base, ours in pairs]
    text = f"{format_table(rows, _COLUMNS)}\n\n{format_table(_stage_rows(*stages), _STAGE_COLUMNS)}"
    config.report(about, text, pairs=figures, stages=stages)


def _write_corpus(folder: Path, config: StartupBenchmark) -> Path:
    from diffretriever.collections import Passage, open_collection

    built_in = open_collection("pydoc")
    records = (record for record in built_in.records() if isinstance(record, Passage))
    short = list(islice((each for each in records if len(each.text) in _CHARACTERS), config.passages))
    asked = [{"_id": f"q{n}", "text": each.title} for n, each in enumerate(short[: config.queries])]
    judged = [f"q{n}\t{each.id}\t1" for n, each in enumerate(short[: config.queries])]
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": each.id, "title": each.title, "text": each.text}) for each in short]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)) + "\n", "utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n", "utf-8")
    return folder


def _jobs(config: StartupBenchmark, corpus: Path, folder: Path) -> dict[str, list[str]]:
    index = str(folder / "index")
    collection = ["--collection", str(corpus)]
    return {
        "encode_beir": [*collection, "--retriever", config.retriever, "--index", index],
        "search": ["--index", index, "--query", "how do I copy a file?"],
        "evaluate": [*collection, "--index", index, "--output", str(folder / "results")],
    }


def _measure(root: Path, config: StartupBenchmark, corpus: Path, folder: Path) -> Side:
    return {name: _job(root, name, flags) for name, flags in _jobs(config, corpus, folder).items()}


def _job(root: Path, name: str, flags: list[str]) -> Took:
    command = [sys.executable, str(root / "jobs" / f"{name}.py"), *flags]
    return Took.model_validate(in_child("benchmarks.startup.loops", "took", command=command, root=str(root)))


def _stages(root: Path, config: StartupBenchmark, corpus: Path, folder: Path) -> Stages:
    found: Stages = {}
    for name, flags in _jobs(config, corpus, folder).items():
        command = [sys.executable, str(Path(__file__).with_name("stages.py")), str(root), name, *flags]
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def _stage_rows(base: Stages, ours: Stages) -> list[list[str]]:
    rows = []
    for job in base:
        for stage in dict.fromkeys([*base[job], *ours[job]]):
            sides = (base[job].get(stage), ours[job].get(stage))
            rows.append([f"{job}.py, {stage}", *("-" if each is None else f"{each:.2f}" for each in sides)])
    return rows


def _row(job: str, unit: str, pairs: list[tuple[Side, Side]]) -> list[str]:
    values = [(getattr(base[job], unit), getattr(ours[job], unit)) for base, ours in pairs]
    ratios = [ours / base for base, ours in values]
    medians = [statistics.median(side) for side in zip(*values, strict=True)]
    return [
        f"{job}.py, {unit.replace('cpu_', 'CPU ')}",
        *(f"{median:.1f}" for median in medians),
        f"{statistics.median(ratios):.2f}",
        " ".join(f"{ratio:.2f}" for ratio in ratios),
    ]


def _plain(side: Side) -> dict[str, dict[str, float]]:
    return {name: took.model_dump() for name, took in side.items()}


if __name__ == "__main__":
    run(StartupBenchmark, main)
