"""The side file of a rerank job: a line for each finished query, so that a killed job goes on where it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from diffretriever.rerank.candidates import Candidates


class PartialScores:
    """Scores of finished queries beside the output, `OUTPUT.partial.jsonl`.

    A line is taken over only if reranker, query and passages are those it was made from, so a job with other settings
    never mixes its scores with old ones. A line that a kill cut short is passed over.
    """

    def __init__(self, output: Path, identity: str) -> None:
        """Read what an earlier attempt left; `identity` is `Reranker.identity`."""
        self.path = output.with_name(f"{output.name}.partial.jsonl")
        self._identity = identity
        self._found = _read(self.path) if self.path.exists() else {}

    def find(self, candidates: Candidates) -> np.ndarray | None:
        """Return the scores of a finished query, float64 [N], or None."""
        scores = self._found.get(self._key(candidates))
        return None if scores is None else np.array(scores, np.float64)

    def add(self, candidates: Candidates, scores_N: np.ndarray) -> None:
        """Append the scores of a query; they outlast the process once this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"query": candidates.query.id, "key": self._key(candidates), "scores": scores_N.tolist()})
        with self.path.open("a", encoding="utf-8") as stream:
            # The line end comes first too: what is there may end in half a line.
            stream.write(f"\n{line}\n")

    def remove(self) -> None:
        """Delete the file, when the output is there."""
        self.path.unlink(missing_ok=True)

    def _key(self, candidates: Candidates) -> str:
        parts = [self._identity.encode(), candidates.query.text.encode()]
        parts += [part for passage in candidates.passages for part in (passage.id.encode(), passage.digest)]
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


def _read(path: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in path.read_bytes().splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        found[fields["key"]] = fields["scores"]
    return found
