"""Two writers without a lock, on a disk through `file://` and on an S3 endpoint: nothing is lost or there twice."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.attack.base import Attack, Round
from benchmarks.attack.living import content_of
from benchmarks.attack.writing import LOST
from diffretriever.index.table import PassageIndex
from diffretriever.search.inspection import inspect
from tests.cluster.s3 import s3_endpoint
from tests.index.compressed_cases import manifest

RACES_A_ROUND = 20
_ATTEMPTS = 20
_SHARED_IDS = [f"s{number}" for number in range(6)]
_PYTHON = "python"
Texts = dict[str, str]


@dataclass(frozen=True)
class Change:
    """What a writer is told to do."""

    change: str
    ids: list[str]
    text: str = ""

    def after(self, before: Texts) -> Texts:
        """Return what is there after it."""
        if self.change == "write":
            return before | {passage_id: f"{self.text} {passage_id}" for passage_id in self.ids}
        gone = self.ids if self.change == "delete" else []
        return {passage_id: text for passage_id, text in before.items() if passage_id not in gone}


class WritersAttack(Attack):
    """Let two processes commit at the same moment."""

    name = "writers"

    def round(self, given: Round) -> None:
        """Race on one index, on a disk or on an object store."""
        where = given.rng.choice(["disk", "s3"]) if given.s3 else "disk"
        with _place(given, where) as uri:
            PassageIndex.create(uri, manifest())
            writers = [_Writer(given, number) for number in range(2)]
            try:
                now: Texts = {}
                for number in range(RACES_A_ROUND):
                    now = _race(given, where, uri, writers, now, number)
                    if given.findings:
                        return
                _verify(given, uri)
            finally:
                for writer in writers:
                    writer.end()


class _Writer:
    def __init__(self, given: Round, number: int) -> None:
        self.number = number
        command = [_PYTHON, "-m", "benchmarks.attack.writing"]
        with (given.folder / f"writer-{number}.log").open("w") as stream:
            self._process: Any = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
            )

    def tell(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        said = str(self._process.stdout.readline()).strip()
        return said or f"the writer ended with status {self._process.wait()}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _place(given: Round, where: str) -> Iterator[str]:
    if where == "disk":
        yield f"file://{given.folder}/index"
        return
    with s3_endpoint(given.folder / "s3.log") as endpoint, endpoint.reached():
        yield endpoint.uri("index")


def _race(given: Round, where: str, uri: str, writers: list[_Writer], now: Texts, number: int) -> Texts:
    """Let both commit, the loser again until it is done; return what is there then."""
    changes = [_drawn(given, now, writer, number) for writer in (0, 1)]
    given.log(f"{number}: {changes}")
    waiting = dict(enumerate(changes))
    for _ in range(_ATTEMPTS):
        for writer, change in waiting.items():
            writers[writer].tell(json.dumps({"uri": uri, **vars(change)}))
        said = {writer: writers[writer].answer() for writer in waiting}
        for writer in waiting:
            writers[writer].tell("go")
        said = {w: writers[w].answer() if word == "ready" else word for w, word in said.items()}
        for answer in said.values():
            if answer not in ("done", LOST):
                given.found(f"race {number} on {where}: {answer}; changes {changes}")
                return now
        given.did(f"commits on {where}", sum(answer == "done" for answer in said.values()))
        given.did(f"commits refused on {where}", sum(answer == LOST for answer in said.values()))
        waiting = {writer: change for writer, change in waiting.items() if said[writer] == LOST}
        if not waiting:
            given.did(f"races on {where}")
            return _checked(given, uri, changes, now, number)
    given.found(f"race {number} on {where}: a writer lost {_ATTEMPTS} times; changes {changes}")
    return now


def _drawn(given: Round, now: Texts, writer: int, number: int) -> Change:
    rng = given.rng
    name = rng.choice(["append", "append", "replace", "delete", "compact"])
    if name == "append" or not now:
        return Change("write", [f"w{writer}-{number}-{part}" for part in range(rng.randint(1, 3))], f"new {number}")
    if name == "replace":
        return Change("write", rng.sample(_SHARED_IDS, rng.randint(1, 3)), f"from {writer} in {number}")
    if name == "delete":
        return Change("delete", rng.sample(sorted(now), min(len(now), 2)))
    return Change("compact", [])


def _checked(given: Round, uri: str, changes: list[Change], before: Texts, number: int) -> Texts:
    """Hold what is there against both orders of the changes."""
    first, second = changes
    possible = [second.after(first.after(before)), first.after(second.after(before))]
    try:
        content = content_of(PassageIndex.open(uri))
    except ValueError as error:
        given.found(f"race {number}: {error}; changes {changes}")
        return before
    if content not in possible:
        given.found(f"race {number}: {changes} made {content} of {before}")
    return content


def _verify(given: Round, uri: str) -> None:
    verification = inspect(PassageIndex.open(uri), check=True).verification
    assert verification is not None
    for problem in verification.problems:
        given.found(f"--verify: {problem.kind}: {problem.first}")
