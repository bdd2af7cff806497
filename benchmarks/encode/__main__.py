"""Encoding against two plain loops: a job against bare forward passes, chosen logits against all logits."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import PositiveInt, model_validator

from benchmarks.measuring import COLUMNS, Benchmark, Comparison, Sample, compare, header, in_child, run
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import (
    BackboneConfig,
    ContentWordsConfig,
    MaskedRetriever,
    TextConfig,
)

_PRESET = "diffretriever-minilm-untrained"
JOB_GOAL = 0.90
LOGITS_GOAL = 3.0


class EncodeBenchmark(Benchmark):
    """Measure encoding: (a) a job against bare forward passes, (b) logits of content words against all logits."""

    passages: PositiveInt = 4608
    """Passages of the built-in collection for (a), spread over it."""
    rows_per_block: PositiveInt = 512
    """Passages of a block in (a); there must be three blocks or more."""
    logits_passages: PositiveInt = 96
    """Passages for (b)."""
    vocab_size: PositiveInt = 152_064
    """Vocabulary of the random model of (b); the default is that of Dream 7B."""
    repeats: PositiveInt = 3
    """Measurements of each loop; the ratio is the median."""

    @model_validator(mode="after")
    def _enough_blocks(self) -> EncodeBenchmark:
        if self.passages <= 2 * self.rows_per_block:
            raise ValueError("--passages must be more than two blocks (--rows-per-block): the first is not counted")
        return self


def main(config: EncodeBenchmark) -> None:
    """Run both comparisons, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    with TemporaryDirectory() as temporary:
        dtype = str(_loop("chosen_dtype"))
        results = [_job_over_bare(config, Path(temporary), dtype), _chosen_over_naive(config, Path(temporary))]
    what = (
        f"(a) {_PRESET} q4p4, {dtype}, {config.passages} passages: bare forward passes, encode job\n"
        f"(b) random Dream model q4p4, float32, {config.logits_passages} passages: all logits, chosen logits"
    )
    table = format_table([row for result in results for row in result.rows()], COLUMNS)
    details = [{**result.model_dump(), "ratio": result.ratio, "ratios": result.ratios} for result in results]
    config.report(about, f"{what}\n\n{table}", dtype=dtype, results=details)


def _job_over_bare(config: EncodeBenchmark, folder: Path, dtype: str) -> Comparison:
    from diffretriever.presets import load_retriever

    retriever = load_retriever(_PRESET)
    assert isinstance(retriever, MaskedRetriever)
    retriever = retriever.model_copy(update={"backbone": retriever.backbone.model_copy(update={"dtype": dtype})})
    arguments: dict[str, str | int] = {
        "collection": _write_corpus(folder / "job.jsonl", config.passages),
        "retriever": _write_retriever(folder / "job.yaml", retriever),
        "rows": config.rows_per_block,
    }
    return compare(
        "(a) job", JOB_GOAL, config.repeats, partial(_sample, "bare", **arguments), partial(_sample, "job", **arguments)
    )


def _chosen_over_naive(config: EncodeBenchmark, folder: Path) -> Comparison:
    from diffretriever.random_models.checkpoints import write_random_checkpoint

    model = write_random_checkpoint(
        "dream", folder / "dream", hidden_size=256, layers=4, heads=4, vocab_size=config.vocab_size
    )
    retriever = MaskedRetriever(
        backbone=BackboneConfig(source=str(model), dtype="float32"),
        budget=Budget(4, 4),
        # The random model's small tokenizer knows few whole words: its pieces are about as many as the words that
        # the full one would know.
        content_words=ContentWordsConfig(subwords=True),
        text=TextConfig(max_passage_tokens=256),
    )
    arguments = {
        "collection": _write_corpus(folder / "logits.jsonl", config.logits_passages),
        "retriever": _write_retriever(folder / "logits.yaml", retriever),
    }
    return compare(
        "(b) logits",
        LOGITS_GOAL,
        config.repeats,
        partial(_sample, "naive", **arguments),
        partial(_sample, "chosen", **arguments),
    )


def _loop(name: str, **arguments: str | int) -> object:
    return in_child("benchmarks.encode.loops", name, **arguments)


def _sample(name: str, **arguments: str | int) -> Sample:
    return Sample.model_validate(_loop(name, **arguments))


def _write_corpus(file: Path, count: int) -> str:
    from diffretriever.collections import Passage, open_collection

    passages = [record for record in open_collection("pydoc").records() if isinstance(record, Passage)]
    if count > len(passages):
        raise SystemExit(f"the built-in collection has {len(passages)} passages, {count} were asked for")
    chosen = [passages[i * len(passages) // count] for i in range(count)]
    lines = [json.dumps({"_id": p.id, "title": p.title, "text": p.text}) + "\n" for p in chosen]
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


def _write_retriever(file: Path, retriever: MaskedRetriever) -> str:
    # JSON is YAML.
    file.write_text(retriever.model_dump_json(), encoding="utf-8")
    return str(file)


if __name__ == "__main__":
    run(EncodeBenchmark, main)
