"""Encoding against plain loops and against sentence-transformers, and what checks cost."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import PositiveInt, TypeAdapter, model_validator

from benchmarks.measuring import COLUMNS, Benchmark, Comparison, Sample, compare, header, in_child, run
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import (
    BackboneConfig,
    ContentWordsConfig,
    MaskedRetriever,
    PooledRetriever,
    TextConfig,
)

_PRESET = "diffretriever-minilm-untrained"
JOB_GOAL = 0.90
LOGITS_GOAL = 3.0
CHECKS_GOAL = 0.02
POOLED_GOAL = 1.4
_POOLED_WORDS = 170


class EncodeBenchmark(Benchmark):
    """Measure encoding: (a) the job, (b) logits of content words, (c) the share of checks, (d) mean pooling."""

    parts: tuple[Literal["a", "b", "c", "d"], ...] = ("a", "b", "c", "d")
    """Which of them."""

    passages: PositiveInt = 4608
    """Passages of the built-in collection for (a), spread over it."""
    rows_per_block: PositiveInt = 512
    """Passages of a block in (a); there must be three blocks or more."""
    logits_passages: PositiveInt = 96
    """Passages for (b)."""
    checked_passages: PositiveInt = 1500
    """Passages for (c)."""
    pooled_passages: PositiveInt = 192
    """Passages for (d), of words of the built-in collection; each is cut at 256 tokens, or nearly as long."""
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
        compared = [_COMPARISONS[part](config, Path(temporary), dtype) for part in config.parts if part in _COMPARISONS]
        if "d" in config.parts:
            compared += [_over_library(config, Path(temporary), attention) for attention in ("auto", "sdpa")]
        checks = _checks(config, Path(temporary), dtype) if "c" in config.parts else {}
    about_parts = {
        "a": f"(a) {_PRESET} q4p4, {dtype}, {config.passages} passages: bare forward passes, encode job",
        "b": f"(b) random Dream model q4p4, float32, {config.logits_passages} passages: all logits, chosen logits",
        "d": (
            f"(d) all-MiniLM-L6-v2, bfloat16, one thread, {config.pooled_passages} passages of some 250 tokens: "
            "sentence-transformers, minilm-pooled by CPU time"
        ),
    }
    text = [line for part, line in about_parts.items() if part in config.parts]
    if compared:
        text += ["", format_table([row for result in compared for row in result.rows()], COLUMNS)]
    if checks:
        share = (checks["finite"] + checks["checksums"]) / checks["encoding"]
        text.append(
            f"(c) {config.checked_passages} passages in one process: {checks['encoding']:.1f} s of CPU, of which "
            f"{checks['finite']:.3f} s look for what is not finite and {checks['checksums']:.3f} s make checksums: "
            f"{share:.2%} (goal: at most {CHECKS_GOAL:.0%}, {'met' if share <= CHECKS_GOAL else 'missed'})"
        )
    details = [{**result.model_dump(), "ratio": result.ratio, "ratios": result.ratios} for result in compared]
    config.report(about, "\n".join(text), dtype=dtype, results=details, checks=checks)


def _job_over_bare(config: EncodeBenchmark, folder: Path, dtype: str) -> Comparison:
    arguments: dict[str, str | int] = {
        "collection": _write_corpus(folder / "job.jsonl", config.passages),
        "retriever": _write_embedded(folder / "job.yaml", dtype),
        "rows": config.rows_per_block,
    }
    return compare(
        "(a) job", JOB_GOAL, config.repeats, partial(_sample, "bare", **arguments), partial(_sample, "job", **arguments)
    )


def _chosen_over_naive(config: EncodeBenchmark, folder: Path, _: str) -> Comparison:
    from diffretriever.testing.checkpoints import write_random_checkpoint

    model = write_random_checkpoint("dream", folder / "dream", hidden_size=256, layers=4, vocab_size=config.vocab_size)
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


def _over_library(config: EncodeBenchmark, folder: Path, attention: str) -> Comparison:
    from diffretriever.presets import load_retriever

    retriever = load_retriever("minilm-pooled")
    assert isinstance(retriever, PooledRetriever)
    place = retriever.backbone.model_copy(update={"dtype": "bfloat16", "attention": attention})
    arguments: dict[str, str | int] = {
        "retriever": _write_retriever(folder / "pooled.yaml", retriever.model_copy(update={"backbone": place})),
        "passages": config.pooled_passages,
        "words": _POOLED_WORDS,
    }
    return compare(
        f"(d) mean pooling, attention {attention}",
        POOLED_GOAL,
        config.repeats,
        partial(_sample, "library", **arguments),
        partial(_sample, "pooled", **arguments),
    )


_COMPARISONS = {"a": _job_over_bare, "b": _chosen_over_naive}


def _checks(config: EncodeBenchmark, folder: Path, dtype: str) -> dict[str, float]:
    corpus = _write_corpus(folder / "checks.jsonl", config.checked_passages)
    found = _loop("checks", collection=corpus, retriever=_write_embedded(folder / "checks.yaml", dtype))
    return TypeAdapter(dict[str, float]).validate_python(found)


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


def _write_embedded(file: Path, dtype: str) -> str:
    from diffretriever.presets import load_retriever

    retriever = load_retriever(_PRESET)
    assert isinstance(retriever, MaskedRetriever)
    backbone = retriever.backbone.model_copy(update={"dtype": dtype})
    return _write_retriever(file, retriever.model_copy(update={"backbone": backbone}))


def _write_retriever(file: Path, retriever: MaskedRetriever | PooledRetriever) -> str:
    # JSON is YAML.
    file.write_text(retriever.model_dump_json(), encoding="utf-8")
    return str(file)


if __name__ == "__main__":
    run(EncodeBenchmark, main)
