"""What an attack is: rounds, each of which a seed and a number make again."""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import NonNegativeInt

from diffretriever.schemas.base import Model

TRACEBACK = "Traceback (most recent call last)"


class Outcome(Model):
    """What a round did and what it found."""

    done: dict[str, NonNegativeInt]
    """How often each thing was done, such as `driver killed` or `codes: flipped, found`."""
    findings: tuple[str, ...]
    """What is wrong, a text each; empty is good."""


@dataclass
class Round:
    """What a round is given, and what it has to say so far."""

    rng: random.Random
    """Decides all that is drawn by chance."""
    folder: Path
    """Its own, empty at first; kept where something is found."""
    shared: Path
    """Of all rounds of one command, for what is the same in each."""
    done: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def did(self, what: str, times: int = 1) -> None:
        """Count something that was done."""
        if times:
            self.done[what] += times

    def found(self, text: str) -> None:
        """Note something that is wrong; it also goes to the log at once, should the process not live to report it."""
        if text not in self.findings:
            self.log(f"FOUND: {text}")
            self.findings.append(text)

    def log(self, text: str) -> None:
        """Say in the round's log what comes next."""
        print(text, flush=True)

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a shared folder that `make` fills if no round has done so before; half of one does not count."""
        place = self.shared / name
        whole = self.shared / f"{name}.whole"
        if not whole.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            make(place)
            whole.touch()
        return place

    def outcome(self) -> Outcome:
        """Return all of it."""
        return Outcome(done=dict(sorted(self.done.items())), findings=tuple(self.findings))


class Attack(ABC):
    """A way to attack the platform."""

    name: ClassVar[str]

    @abstractmethod
    def round(self, given: Round) -> None:
        """Attack once; whatever is raised is a finding as well."""


def rng_of(seed: int, name: str, number: int) -> random.Random:
    """Return what decides in a round: the same for the same three."""
    return random.Random(f"{seed} {name} {number}")  # noqa: S311 (no secret)
