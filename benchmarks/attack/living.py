"""Processes of the life of an index: one that changes it and may be killed, and readers that check what they see.

`python -m benchmarks.attack.living change URI` takes changes as lines of JSON on standard input and answers each with
`done`, or with an error; `... read URI STOP SEED` looks until the file STOP is there, and ends with a line of JSON.

A passage's text names its vectors, so that whoever reads a version knows what must be found in it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import torch

from diffretriever.index import compaction, writer
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense import open_dense
from diffretriever.search.sparse import open_sparse
from diffretriever.vectors.hits import Hits
from tests.index.index_cases import compact
from tests.index.life_model import (
    DIRECTIONS,
    ENCODED_QUERIES,
    MOST_VECTORS,
    QUERIES,
    Model,
    Stored,
    brute_force,
    brute_force_sparse,
    table_of,
)

_CPU = torch.device("cpu")
_MOST = 100
_WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def random_passage(rng: random.Random) -> Stored:
    """Return a passage whose text names its vectors."""
    directions = tuple(rng.randrange(len(DIRECTIONS)) for _ in range(rng.randint(1, MOST_VECTORS)))
    return stored(f"{rng.choice(['one', 'two', 'three'])} {' '.join(map(str, directions))}")


def stored(text: str) -> Stored:
    """Return the passage that a text names."""
    return Stored(text, tuple(int(number) for number in text.split()[1:]))


def content_of(index: PassageIndex) -> dict[str, str]:
    """Return id → text of all passages; raises `ValueError` where an id is there twice."""
    table = index.dataset.to_table(columns=["id", "text"])
    ids = table.column("id").to_pylist()
    if len(set(ids)) != len(ids):
        raise ValueError(f"{len(ids) - len(set(ids))} passages are there twice, of {len(ids)}")
    return dict(zip(ids, table.column("text").to_pylist(), strict=True))


def wrong_in(index: PassageIndex) -> str | None:
    """Return what searching this version finds that its passages are not, by brute force; None if it is right."""
    model = {passage_id: stored(text) for passage_id, text in content_of(index).items()}
    options = SearchOptions(index=index.uri)
    expected = {
        "dense": [brute_force(model, query, _MOST) for query in QUERIES],
        "sparse": [brute_force_sparse(model, query, _MOST) for query in QUERIES],
    }
    searches: dict[str, Callable[[], Hits]] = {
        "dense": lambda: open_dense(index, options, _CPU).search(ENCODED_QUERIES, _MOST),
        "sparse": lambda: open_sparse(index, options).search(ENCODED_QUERIES, _MOST),
    }
    for mode, search in searches.items():
        found = search()
        if found != expected[mode]:
            return f"{mode} search of version {index.version}: {list(found)} in place of {expected[mode]}"
    return None


def read(uri: str, stop: str, seed: str) -> None:
    """Look at versions until told to stop; say which texts each had, and what was wrong."""
    rng = random.Random(seed)  # noqa: S311 (no secret)
    seen: dict[int, dict[str, str]] = {}
    wrong: list[str] = []
    looks = 0
    while not Path(stop).exists():
        looks += 1
        # Who changes the index needs the processor as well.
        time.sleep(0.1 * rng.random())
        try:
            index = PassageIndex.open(uri)
            if rng.random() < 0.3 and index.version > 1:
                index = PassageIndex.open(uri, rng.randint(max(1, index.version - 4), index.version))
            content = content_of(index)
            if seen.setdefault(index.version, content) != content:
                wrong.append(f"version {index.version} has changed: {seen[index.version]}, then {content}")
            problem = wrong_in(index)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            wrong.append(problem)
    print(json.dumps({"looks": looks, "seen": seen, "wrong": wrong[:1]}), flush=True)


class Death:
    """Kills this process at one of the moments at which it changes what is on the disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.left: int | None = None
        sys.addaudithook(self._audit)
        places = (lance.LanceDataset, "commit"), (writer, "write_fragments")
        for place, name in (*places, (compaction, "commit")):
            setattr(place, name, self._around(getattr(place, name)))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.left is None or not arguments or self.folder not in str(arguments[0]):
            return
        if event in _WRITES or (event == "open" and len(arguments) > 2 and arguments[2] & _WRITING):
            self.moment()

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.moment()
            result = function(*arguments, **named)
            self.moment()
            return result

        return called

    def moment(self) -> None:
        """Die if this is the moment."""
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def change(uri: str) -> None:
    """Make the changes that standard input names."""
    death = Death(uri)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        death.left = asked["die"]
        try:
            CHANGES[asked["change"]](uri, asked["what"])
            death.left = None
            print("done", flush=True)
        except Exception as error:
            death.left = None
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
        print("ready", flush=True)


def _write(uri: str, texts: dict[str, str]) -> None:
    """As an encode job does: all blocks and what they replace, in one step."""
    index = PassageIndex.open(uri)
    there = content_of(index)
    items = list(texts.items())
    halves: list[Model] = [{i: stored(text) for i, text in items[part::2]} for part in (0, 1)]
    receipts = {str(n): write_block(uri, table_of(half)) for n, half in enumerate(halves) if half}
    Committer(index).commit(receipts, [passage_id for passage_id in texts if passage_id in there])


CHANGES: dict[str, Callable[[str, Any], object]] = {
    "write": _write,
    "delete": lambda uri, ids: PassageIndex.open(uri).delete(ids),
    "compact": lambda uri, _: compact(PassageIndex.open(uri)),
    "accelerate": lambda uri, _: accelerate(AccelerateJob(index=uri)),
    "restore": PassageIndex.restore,
}
"""What a life consists of."""


if __name__ == "__main__":
    logging.getLogger("diffretriever").setLevel(logging.ERROR)
    if sys.argv[1] == "change":
        change(*sys.argv[2:])
    else:
        read(*sys.argv[2:])
