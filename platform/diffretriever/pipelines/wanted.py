"""Which passages of a collection to encode, given what indexes hold of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diffretriever.collections import Passage
from schemas.jobs import EncodeJob

_CONFLICTS_NAMED = 5


@dataclass
class Wanted:
    """Decides on each passage: it is to be encoded if any of the indexes lacks it."""

    job: EncodeJob
    present: Sequence[dict[str, bytes]]
    """What each index holds: passage id → digest."""
    already_there: int = 0
    skipped: int = 0
    replaced: int = 0
    conflicts: int = 0
    first_conflicts: list[str] = field(default_factory=list)

    def __call__(self, passage: Passage) -> bool:
        """Return whether to encode the passage, and count it."""
        digests = {held.get(passage.id) for held in self.present}
        if digests == {passage.digest}:
            self.already_there += 1
            return False
        if digests <= {None, passage.digest}:
            return True
        if self.job.on_existing == "replace":
            self.replaced += 1
            return True
        if self.job.on_existing == "skip":
            self.skipped += 1
            return False
        self.conflicts += 1
        self.first_conflicts += [passage.id] if self.conflicts <= _CONFLICTS_NAMED else []
        return False

    def refuse_conflicts(self) -> None:
        """Stop before anything is encoded if passages changed and the job does not say what to do with them."""
        if self.conflicts == 0:
            return
        names = ", ".join(f"'{i}'" for i in self.first_conflicts) + (", …" if self.conflicts > _CONFLICTS_NAMED else "")
        raise ValueError(
            f"{self.conflicts} passages are in {self.job.index} with another text ({names}): say --on-existing replace "
            "to replace such passages, or --on-existing skip to leave them as they are"
        )
