"""The interface of candidate indexes: they name passages, and never score what is returned.

Legend: C candidates of a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from diffretriever.artefacts.artefact import Artefact, DamagedError, open_all_added, unless_damaged
from diffretriever.artefacts.cache import HeldFolder
from diffretriever.index.table import PassageIndex
from diffretriever.progress import track
from diffretriever.representations import Representations
from diffretriever.schemas.accelerate import ProposerName
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment


class Proposer(ABC):
    """A candidate index over segments of one index version."""

    name: ClassVar[ProposerName]
    content: ClassVar[str]
    """What it names passages by, as a person is told of it."""
    needs_slots: ClassVar[bool] = False
    """Whether codes of mean vectors alone are too little to make it of."""
    kept: ClassVar[str | None] = None
    """What its files beside the codes of a segment are called; None where it has none."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """`segments` are those that the candidate index knows."""
        self.passages = CodedPassages(segments)

    @classmethod
    @abstractmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Make what the candidate index lacks to know all of an index's segments.

        Raises:
            ValueError: a passage's vectors hold NaN or infinity, or there are no codes that it needs.
        """

    @classmethod
    @abstractmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over those of an index's segments that it knows."""

    @abstractmethod
    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return at most n passages a query as numbers into `passages`, int64 [C], most promising first, none twice."""

    @classmethod
    @abstractmethod
    def check(cls, artefact: Artefact) -> None:
        """Read what it keeps beside a fragment's codes, and compare that with what was written; there may be nothing.

        Raises:
            DamagedError: it is not what was written.
        """


class KeptFiles(Protocol):
    """What a candidate index keeps of one segment, as files."""

    @classmethod
    def of(cls, segment: Segment, others: Sequence[Self]) -> Self:
        """Make them; `others` are those of the segments before."""

    def write(self, folder: Path) -> None:
        """Write them into a folder, as `read` reads them."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote; raises OSError, ValueError, KeyError or TypeError for anything else."""

    def fits(self, segment: Segment) -> bool:
        """Return whether all numbers lie within a segment."""


F = TypeVar("F", bound=KeptFiles)


class KeepingProposer(Proposer, Generic[F]):
    """A candidate index that keeps files beside the codes of each segment."""

    kept: ClassVar[str]
    keeps: type[F]
    """What is in them."""

    def __init__(self, segments: Sequence[Segment], kept: Sequence[F]) -> None:
        """`segments` are those that have such files, and `kept` what is in those of each."""
        super().__init__(segments)
        self._kept = kept

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Make the files that segments lack, and damaged ones anew."""
        CodedPassages(segments).refuse_not_finite(index.uri)
        there: list[F] = []
        pairs = zip(segments, cls._opened(segments), strict=True)
        total, label = sum(len(segment.codes) for segment in segments), f"{cls.name} → {index.uri}"
        for segment, kept in track(pairs, label, "passages", total, lambda pair: len(pair[0].codes)):
            if kept is not None and cls._is_whole(segment):
                there.append(kept)
                continue
            there.append(cls.keeps.of(segment, there))
            with segment.artefact.adding(cls.kept) as folder:
                there[-1].write(folder)

    @classmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over the segments that have such files; a line in the log names those whose are damaged."""
        pairs = zip(segments, cls._opened(segments), strict=True)
        found = [(segment, kept) for segment, kept in pairs if kept is not None]
        return cls([segment for segment, _ in found], [kept for _, kept in found])

    @classmethod
    def check(cls, artefact: Artefact) -> None:
        """See `Proposer`."""
        artefact.check_added(cls.kept)
        held = artefact.open_added(cls.kept)
        if held is not None:
            cls._read(held)

    @classmethod
    def _opened(cls, segments: Sequence[Segment]) -> list[F | None]:
        """Return what is in the files of each segment; None of one that has none, or damaged ones."""
        folders = open_all_added([segment.artefact for segment in segments], cls.kept)
        pairs = zip(segments, folders, strict=True)
        return [
            None if held is None else unless_damaged(partial(cls._fitting, segment, held)) for segment, held in pairs
        ]

    @classmethod
    def _fitting(cls, segment: Segment, held: HeldFolder) -> F:
        kept = cls._read(held)
        if not kept.fits(segment):
            raise DamagedError(f"{held.folder / cls.kept} does not fit the codes beside it")
        return kept

    @classmethod
    def _read(cls, held: HeldFolder) -> F:
        try:
            return cls.keeps.read(held.folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{held.folder / cls.kept} cannot be read ({error})") from error

    @classmethod
    def _is_whole(cls, segment: Segment) -> bool:
        try:
            segment.artefact.check_added(cls.kept)
        except DamagedError:
            return False
        return True
