"""Files that evaluations read."""

from __future__ import annotations

from pathlib import Path

from diffretriever.collections import Qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    lines = [f"{query} 0 {passage} {grade}\n" for query, judged in qrels.items() for passage, grade in judged.items()]
    path.write_text("".join(lines))
