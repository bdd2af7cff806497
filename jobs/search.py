"""Ask an index one question."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from datetime import date
from typing import TYPE_CHECKING, Any

from _entry import run

from diffretriever.schemas.mode import Mode
from diffretriever.schemas.search import SearchJob

if TYPE_CHECKING:
    from diffretriever.search.selecting import BudgetChooser, Choice


def main(config: SearchJob) -> None:
    """Search, then print the ranked passages."""
    from diffretriever.search import open_searcher
    from diffretriever.search.selecting import BudgetChooser

    searcher = open_searcher(config.index, config, config.version)
    mode: Mode = config.mode or searcher.default_mode
    budgets = [config.query_budget] if config.query_budget else None
    if config.selector:
        chooser = BudgetChooser.for_searcher(searcher, config.selector)
        (choice,) = chooser.choose([config.query])
        budgets = [choice.budget]
        print(_reason(chooser, choice), file=sys.stderr if config.json_output else sys.stdout)
    hits = searcher.search([config.query], k=config.top_k, modes=[mode], budgets=budgets, filter=config.filter)[mode]
    passages = searcher.index.shown(hits.rows())
    ranked = list(zip(hits[0], passages, strict=True))
    if config.json_output:
        rows = [{"id": i, "score": score, "mode": mode, **passage} for (i, score), passage in ranked]
        print(json.dumps(rows, ensure_ascii=False, indent=2, default=date.isoformat))
        return
    among = f", of which those count that meet {config.filter}" if config.filter else ""
    print(f"{mode} scores of {len(searcher.index):,} passages{among}")
    if not ranked:
        print("nothing found")
    for rank, ((passage_id, score), passage) in enumerate(ranked, start=1):
        print(_show(rank, passage_id, score, passage))


def _reason(chooser: BudgetChooser, choice: Choice) -> str:
    looked_at = ", ".join(f"{name} {choice.features[name]:.4g}" for name in chooser.selector.features)
    allowed = ", ".join(map(str, chooser.selector.budgets))
    return f"K_q = {choice.budget}, chosen of {allowed} by {chooser.selector.name}" + (
        f": {looked_at}" if looked_at else ""
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
