"""Ask an index one question."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.search import SearchJob

if TYPE_CHECKING:
    from diffretriever.schemas.serve import Explanation, Reading, Word
    from diffretriever.search.selecting import BudgetChooser, Choice


_EXCERPT = 100
"""Characters of a slot's part of a text that are shown."""


def main(config: SearchJob) -> None:
    """Search, then print the ranked passages."""
    from diffretriever.search import open_searcher
    from diffretriever.search.selecting import BudgetChooser

    searcher = open_searcher(config.index, config.search_options, config.version)
    mode: Mode = config.mode or searcher.default_mode
    budget = config.query_budget
    if config.selector:
        chooser = BudgetChooser(config.selector, searcher.index, searcher.preparer)
        (choice,) = chooser.choose([config.query])
        budget = choice.budget
        print(_reason(chooser, choice), file=sys.stderr if config.json_output else sys.stdout)
    budgets = None if budget is None else [budget]
    hits_by_mode = searcher.search(
        [config.query],
        k=config.top_k,
        modes=[mode],
        budgets=budgets,
        filter=config.filter,
        documents=config.documents,
    )
    hits = hits_by_mode[mode]
    rows = hits.rows()
    ranked = list(zip(hits[0], searcher.index.shown(rows), strict=True))
    explained: Sequence[Explanation | None] = [None] * len(ranked)
    if config.explain:
        explained = searcher.explain(config.query, rows, budget=budget, words=config.words)
    if config.json_output:
        print(json.dumps(_as_json(ranked, mode, explained), ensure_ascii=False, indent=2, default=date.isoformat))
        return
    condition = f", filter: {config.filter}" if config.filter else ""
    documents = f", documents by {config.documents}" if config.documents else ""
    print(f"{mode} scores of {counted(len(searcher.index), 'passages')}{condition}{documents}")
    if not ranked:
        print("no passages found")
    for rank, (((passage_id, score), passage), explanation) in enumerate(zip(ranked, explained, strict=True), start=1):
        print(_show(rank, passage_id, score, passage))
        if explanation is not None:
            print(textwrap.indent("\n".join(_why(explanation)), "      "))


def _as_json(
    ranked: Sequence[tuple[tuple[str, float], dict[str, Any]]], mode: Mode, explained: Sequence[Explanation | None]
) -> list[dict[str, Any]]:
    rows = [{"id": i, "score": score, "mode": mode, **passage} for (i, score), passage in ranked]
    return [
        row if explanation is None else {**row, "explanation": explanation.model_dump()}
        for row, explanation in zip(rows, explained, strict=True)
    ]


def _why(explanation: Explanation) -> Iterator[str]:
    """Yield lines on each query slot and its match, on unmatched slots, and on terms; slots count from 0."""
    query, passage = explanation.query_readings, explanation.passage_readings
    for match in explanation.slots:
        share = "" if match.share is None else f" ({match.share:.0%})"
        yield f"query slot {match.slot} matched passage slot {match.passage_slot}: {match.product:.4f}{share}"
        yield f"  query:   {_predicted(match.words, query[match.slot] if query else [])}"
        yield f"  passage: {_predicted(match.passage_words, passage[match.passage_slot] if passage else [])}"
        if explanation.passage_parts:
            yield f"  reads:   {_excerpt(explanation.passage_parts[match.passage_slot])}"
    matched = {match.passage_slot for match in explanation.slots}
    for slot, words in enumerate(explanation.passage_slots):
        if slot not in matched:
            yield f"passage slot {slot}, unmatched: {_predicted(words, passage[slot] if passage else [])}"
    if explanation.terms:
        shared = ", ".join(f"{term.word} {term.product:.2f} ({term.share:.0%})" for term in explanation.terms)
        yield f"shared terms: {shared}"


def _predicted(words: list[Word], reading: Reading) -> str:
    if reading:
        return ", ".join(f"{term.word} {term.logit:.1f}" for term in reading)
    return ", ".join(word.word for word in words) or "-"


def _excerpt(part: str) -> str:
    words = " ".join(part.split())
    return words if len(words) <= _EXCERPT else f"{words[: _EXCERPT // 2]} … {words[-_EXCERPT // 2 :]}"


def _reason(chooser: BudgetChooser, choice: Choice) -> str:
    features = ", ".join(f"{name} {choice.features[name]:.4g}" for name in chooser.selector.features)
    allowed = ", ".join(map(str, chooser.selector.budgets))
    return f"K_q = {choice.budget}, chosen of {allowed} by {chooser.selector.name}" + (
        f": {features}" if features else ""
    )


def _show(rank: int, passage_id: str, score: float, passage: dict[str, Any]) -> str:
    width = min(100, shutil.get_terminal_size().columns)
    title = f"  {passage['title']}" if passage["title"] else ""
    text = textwrap.shorten(passage["text"], width=3 * (width - 6), placeholder=" …")
    body = textwrap.fill(text, width=width, initial_indent="      ", subsequent_indent="      ")
    known = [f"{name}: {value}" for name, value in passage["metadata"].items() if value is not None]
    metadata = f"\n      {textwrap.shorten(', '.join(known), width=width - 6, placeholder=' …')}" if known else ""
    return f"{rank:4}. {score:.4f}  [{passage_id}]{title}\n{body}{metadata}"


if __name__ == "__main__":
    run(SearchJob, main)
