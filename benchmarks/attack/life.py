"""Random lives of an index, changed by a process that is killed again and again, beside three readers."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.attack.base import Attack, Round
from benchmarks.attack.living import content_of, random_passage, wrong_in
from diffretriever.index.table import PassageIndex
from diffretriever.search.inspection import inspect
from tests.index.compressed_cases import manifest
from tests.index.life_model import HIDDEN

CHANGES_A_ROUND = 30
READERS = 3
_IDS = [f"d{number}" for number in range(24)]
_LONGEST_S = 0.4
"""Of a change, about: a kill by the clock comes before."""
_PYTHON = "python"
Texts = dict[str, str]


class LifeAttack(Attack):
    """Change an index, kill who changes it, and hold what is there against a dictionary."""

    name = "life"

    def round(self, given: Round) -> None:
        """Live one life."""
        life = Life(given)
        try:
            for number in range(CHANGES_A_ROUND):
                life.change()
                if number % 5 == 4:
                    life.check()
                if given.findings:
                    break
            life.check()
        finally:
            life.end()


class Life:
    """An index, what must be in it, and the processes around it."""

    def __init__(self, given: Round, readers: int = READERS) -> None:
        self.given = given
        self.uri = str(given.folder / "index")
        self.now: Texts = {}
        first = PassageIndex.create(self.uri, manifest(HIDDEN)).version
        self.allowed: dict[int, list[Texts]] = {first: [{}]}
        """What may be in each version."""
        self.stop = given.folder / "stop"
        self.changer, self.spare = self._changer(), self._changer()
        self.readers = [self._reader(number) for number in range(readers)]

    def change(self) -> None:
        """Make a change, or be killed in the middle; note what may be there afterwards."""
        name, what, after = self._drawn()
        rng = self.given.rng
        kind = rng.choice(["none", "moment", "moment", "clock"])
        die = rng.randint(0, 14) if kind == "moment" else None
        delay = rng.random() * _LONGEST_S if kind == "clock" else None
        self.given.log(f"{name} {what}, killed by {kind}: {die if die is not None else delay}")
        assert self.changer.stdin is not None
        assert self.changer.stdout is not None
        if self.changer.stdout.readline().strip() != "ready":
            raise RuntimeError("the changing process does not start: see changer.log")
        self.changer.stdin.write(json.dumps({"change": name, "what": what, "die": die}) + "\n")
        self.changer.stdin.flush()
        answer = self._answer(delay)
        self.given.did(f"{name} killed" if answer == "" else f"{name} done")
        if answer not in ("", "done"):
            self.given.found(f"{name} {what}: {answer}")
            return
        self._look(name, after, is_done=answer == "done")

    def _answer(self, delay: float | None) -> str:
        """Return what the changing process says, or nothing once it is dead, and another has taken its place."""
        assert self.changer.stdout is not None
        if delay is not None:
            time.sleep(delay)
            self.changer.send_signal(signal.SIGKILL)
        answer = str(self.changer.stdout.readline()).strip()
        # It may have ended its work before the signal came.
        if delay is not None or not answer:
            self.changer.wait()
            self.changer, self.spare = self.spare, self._changer()
        return answer

    def _look(self, name: str, after: Texts, *, is_done: bool) -> None:
        before = self.now
        possible = [after] if is_done else [before, after]
        try:
            index = PassageIndex.open(self.uri)
            content = content_of(index)
        except ValueError as error:
            self.given.found(f"after {name}: {error}")
            return
        if content not in possible:
            self.given.found(f"after {name} (done: {is_done}): {content} in place of one of {possible}")
        for version in range(max(self.allowed) + 1, index.version):
            self.allowed[version] = [before, after]
        self.allowed.setdefault(index.version, [content])
        self.now = content

    def _drawn(self) -> tuple[str, Any, Texts]:
        """Return a change, what it is told, and what is there after it."""
        rng = self.given.rng
        if not self.now or rng.random() < 0.4:
            ids = rng.sample(_IDS, rng.randint(1, 6))
            texts = {passage_id: random_passage(rng).text for passage_id in ids}
            return "write", texts, self.now | texts
        name = rng.choice(["delete", "compact", "accelerate", "accelerate", "restore"])
        if name == "delete":
            gone = rng.sample(sorted(self.now), rng.randint(1, min(4, len(self.now))))
            return name, gone, {i: text for i, text in self.now.items() if i not in gone}
        if name == "restore":
            known = [version for version, texts in self.allowed.items() if len(texts) == 1]
            version = rng.choice(known[-8:])
            return name, version, self.allowed[version][0]
        return name, None, self.now

    def check(self) -> None:
        """Verify the newest version and search it."""
        index = PassageIndex.open(self.uri)
        verification = inspect(index, check=True).verification
        assert verification is not None
        for problem in verification.problems:
            self.given.found(f"--verify: {problem.kind}: {problem.first}")
        wrong = wrong_in(index)
        if wrong is not None:
            self.given.found(wrong)
        self.given.did("verified and searched")

    def end(self) -> None:
        """Stop everybody, and hear what the readers have seen."""
        for changer in (self.changer, self.spare):
            changer.kill()
            changer.wait()
        self.stop.touch()
        for number, reader in enumerate(self.readers):
            said, _ = reader.communicate()
            try:
                report = json.loads(said.splitlines()[-1])
            except (ValueError, IndexError):
                self.given.found(f"reader {number} ended with status {reader.returncode}: {said[-500:]}")
                continue
            self.given.did("snapshots read", report["looks"])
            for wrong in report["wrong"]:
                self.given.found(f"reader {number}: {wrong}")
            for version, content in report["seen"].items():
                if content not in self.allowed.get(int(version), [content]):
                    self.given.found(f"reader {number}: version {version} held {content}")

    def _changer(self) -> Any:
        return self._started("change", self.uri, log="changer.log")

    def _reader(self, number: int) -> Any:
        return self._started("read", self.uri, str(self.stop), str(self.given.rng.random()), log=f"reader-{number}.log")

    def _started(self, *arguments: str, log: str) -> Any:
        command = [_PYTHON, "-m", "benchmarks.attack.living", *arguments]
        with (Path(self.given.folder) / log).open("a") as stream:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True)
