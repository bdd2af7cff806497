"""The whole paper on random weights: all that a reproduction does, on any machine and within minutes.

Its numbers mean nothing. It shows that every row runs from weights and collections to the pages, and how these look.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from benchmarks.latency.__main__ import LatencyBenchmark
from benchmarks.latency.__main__ import main as measure_latencies
from diffretriever.schemas.settings import JobConfig
from diffretriever.schemas.sweep import PAPER_COUNTS, SweepJob
from diffretriever.studies.budgets.analysis_config import AnalyseBudgetsJob
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.sizes import FAMILIES

if TYPE_CHECKING:
    from diffretriever.studies.reproduction.plan import Plan

SLOTTED = {
    "Dream": ("Dream-org/Dream-v0-Instruct-7B", "diffretriever-dream"),
    "LLaDA": ("GSAI-ML/LLaDA-8B-Instruct", "diffretriever-llada"),
}
"""Backbones whose budgets are swept → what the presets name, and the preset."""
_MSMARCO = "msmarco"
_MSMARCO_SPLITS = ("train", "dev", "dl19", "dl20")
_BEIR = ("scifact", "hotpotqa")
"""The two collections that rows search under the seven names of BEIR, in turn."""

_COMMAND = "python -m tools.random_paper"
_N_PASSAGES, _N_QUERIES = 12, 4
_WORDS = ("masked", "slot", "query", "passage", "vector", "index", "table", "commit", "shard", "budget", "search")
_RANK = 2
_LENGTHS, _SIZES = (64, 128), (1_000, 100_000)


class RandomPaperJob(JobConfig):
    """Write random checkpoints, adapters and collections, run every row on them, and write the paper's pages."""

    output: Path
    """Folder for all of it; the same command again goes on from what is there."""
    protocol: str = "authors"
    """What the rows are run with, as reproduce.py takes it."""
    budgets: tuple[PositiveInt, ...] = PAPER_COUNTS
    """Numbers of slots that are swept, for queries and for passages."""


@dataclass(frozen=True)
class Inputs:
    """What a reproduction is given."""

    backbones: dict[str, Path]
    """What the presets name → folder."""
    adapters: dict[str, Path]
    """Preset → folder."""
    collections: dict[str, Path]
    """As `--collections` takes them."""
    named: dict[str, Path]
    """Corpus → folder of its name."""


def main(config: RandomPaperJob) -> None:
    """Run everything, and say where the pages are."""
    job = run_paper(config.model_copy(update={"output": config.output.absolute()}), lambda plan: plan)
    print(f"in the paper's layout: {job.output / 'paper.html'}, and the same in Markdown and LaTeX beside it")


def run_paper(
    config: RandomPaperJob, chosen: Callable[[Plan], Plan], swept: Mapping[str, Sequence[str]] | None = None
) -> ReproduceJob:
    """Make inputs, analyses and latencies, run what `chosen` leaves of the plan, and write the pages of the whole.

    Args:
        config: where to write, and what.
        chosen: leaves out rows that are not to be run.
        swept: backbone → corpora whose sweeps its analysis takes; None: both and all.

    Returns:
        The reproduction's job.
    """
    from diffretriever.studies.reproduction.exhibits import write_paper
    from diffretriever.studies.reproduction.plan import make_plan
    from diffretriever.studies.reproduction.report import write_report
    from diffretriever.studies.reproduction.runner import run_plan
    from diffretriever.studies.reproduction.tables import BEIR7

    swept = swept or dict.fromkeys(SLOTTED, (_MSMARCO, *BEIR7))
    inputs = write_inputs(config.output / "inputs")
    latencies = config.output / "latencies.json"
    if not latencies.is_file():
        measure_latencies(LatencyBenchmark(lengths=_LENGTHS, sizes=_SIZES, device="cpu", output=latencies))
    job = ReproduceJob(
        output=config.output / "paper",
        protocol=(config.protocol,),
        collections={name: str(folder) for name, folder in inputs.collections.items()},
        backbones=inputs.backbones,
        adapters=inputs.adapters,
        analyses={name: analysed(name, inputs, config, corpora) for name, corpora in swept.items()},
        latencies=latencies,
    )
    plan = make_plan(job)
    failed = run_plan(chosen(plan), job, _COMMAND, _say)
    write_paper(plan, job, write_report(plan, job, failed, _COMMAND))
    return job


def _say(line: str) -> None:
    print(line, flush=True)


def write_inputs(folder: Path) -> Inputs:
    """Write random checkpoints and adapters, and three collections: MS MARCO and two that BEIR's seven names share.

    Rows search the three; an analysis knows its sweeps by the names of their collections, so that each name has a copy.
    """
    from diffretriever.studies.reproduction.plan import tuned_presets
    from diffretriever.studies.reproduction.tables import BEIR7, load_tables
    from diffretriever.testing.adapters import write_random_adapter
    from diffretriever.testing.checkpoints import write_random_checkpoint

    root = folder / "collections"
    root.mkdir(parents=True, exist_ok=True)
    backbones, adapters = {}, {}
    for source, family in FAMILIES.items():
        backbones[source] = _once(folder / family, partial(write_random_checkpoint, family, hidden_size=32))
        _once(folder / f"{family}-adapter", partial(write_random_adapter, backbones[source], rank=_RANK))
    for preset, source in tuned_presets(load_tables(())).items():
        if source in FAMILIES:
            adapters[preset] = folder / f"{FAMILIES[source]}-adapter"
    named = {_MSMARCO: _once(root / _MSMARCO, partial(_write_collection, _MSMARCO_SPLITS, 0))}
    for place, name in enumerate(BEIR7):
        seed = 1 + place % len(_BEIR)
        named[name] = _once(root / name, partial(_write_collection, ("test",), seed))
    shared = {name: named[_BEIR[place % len(_BEIR)]] for place, name in enumerate(BEIR7)}
    return Inputs(backbones, adapters, {_MSMARCO: named[_MSMARCO], **shared}, named)


def _once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Have a folder written unless it is there, whole or not at all; return it."""
    from diffretriever.core.files import whole_folder

    if not folder.is_dir():
        with whole_folder(folder) as written:
            write(written)
    return folder


def _write_collection(splits: Sequence[str], seed: int, folder: Path) -> None:
    """Write a collection in BEIR's layout, the same for the same seed."""
    (folder / "qrels").mkdir()
    draw = random.Random(seed)  # noqa: S311 (no secret)
    passages = [
        {"_id": f"p{n}", "title": " ".join(draw.sample(_WORDS, 2)), "text": " ".join(draw.sample(_WORDS, 6))}
        for n in range(_N_PASSAGES)
    ]
    queries = [
        {"_id": f"{split}{n}", "text": " ".join(draw.sample(_WORDS, n + 1))}
        for split in splits
        for n in range(_N_QUERIES)
    ]
    for split in splits:
        judged = [f"{split}{n}\tp{draw.randrange(_N_PASSAGES)}\t1" for n in range(_N_QUERIES)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    for name, records in (("queries", queries), ("corpus", passages)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def analysed(name: str, inputs: Inputs, config: RandomPaperJob, corpora: Sequence[str]) -> Path:
    """Sweep the budgets of a backbone and return the folder of the analysis.

    Args:
        name: of `SLOTTED`.
        inputs: weights and collections.
        config: says where to write, and what budgets.
        corpora: names of collections; MS MARCO, on whose training queries the fixed budget is chosen, is one of them.
    """
    from diffretriever.studies.budgets.measuring import measure_sweep, select_budget
    from diffretriever.studies.budgets.report import analyse
    from diffretriever.studies.budgets.sweep import sweep_budgets

    source, preset = SLOTTED[name]
    folder = config.output / "sweeps" / name
    sweeps = []
    for corpus in corpora:
        sweep = SweepJob(
            collection=str(inputs.named[corpus]),
            retriever=preset,
            backbone=str(inputs.backbones[source]),
            output=folder / corpus,
            query_budgets=config.budgets,
            passage_budgets=config.budgets,
        )
        sweep_budgets(sweep, _COMMAND, _say)
        manifest = measure_sweep(sweep)
        select_budget(sweep, manifest)
        sweeps += [folder / corpus / split for split in manifest.splits if split != "train"]
    analysis = config.output / "analyses" / name
    analyse(AnalyseBudgetsJob(sweeps=tuple(sweeps), selection=folder / _MSMARCO / "train", output=analysis), _COMMAND)
    return analysis


if __name__ == "__main__":
    main(RandomPaperJob.from_command_line())
