"""What a search finds, for people: text in a terminal, a table in a notebook, a data frame."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from diffretriever.schemas.base import counted
from diffretriever.schemas.metadata import Scalar
from diffretriever.schemas.mode import Mode

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 100
_SHOWN_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    rank: int
    """From 1."""
    id: str
    score: float
    title: str
    text: str
    collection: str
    """Name of the collection that it came with."""
    metadata: dict[str, Scalar | None] = field(default_factory=dict, hash=False)
    """Its further fields that the index keeps; None where it has none."""


@dataclass(frozen=True)
class Results(Sequence[Hit]):
    """The passages found for one query, best first."""

    query: str
    mode: Mode
    """The score that they are ranked by."""
    hits: tuple[Hit, ...]

    @overload
    def __getitem__(self, place: int) -> Hit: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...

    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        """Return one hit by its place, from 0, or a slice of them."""
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def ids(self) -> list[str]:
        """The passages' ids, best first."""
        return [hit.id for hit in self.hits]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each hit: the fields of `Hit`, then its metadata (`metadata.NAME` for a name of both)."""
        import pandas as pd

        names = [name for name in Hit.__dataclass_fields__ if name != "metadata"]
        rows = [{name: getattr(hit, name) for name in names} for hit in self.hits]
        further = [
            {f"metadata.{name}" if name in names else name: value for name, value in hit.metadata.items()}
            for hit in self.hits
        ]
        return pd.DataFrame(
            [{**row, **own} for row, own in zip(rows, further, strict=True)],
            columns=[*names, *(further[0] if further else ())],
        )

    def __repr__(self) -> str:
        head = f"{counted(len(self), 'passages')} by {self.mode} scores for '{self.query}'"
        return "\n".join([head, *(_line(hit) for hit in self.hits)])

    def _repr_html_(self) -> str:
        frame = self.to_pandas()
        frame["text"] = [textwrap.shorten(text, width=_SHOWN_CHARACTERS, placeholder=" …") for text in frame["text"]]
        style = frame.style.hide(axis="index").set_caption(html.escape(f"{self.query} ({self.mode})"))
        return str(style.format(escape="html", precision=4).format_index(escape="html", axis="columns").to_html())


def _line(hit: Hit) -> str:
    title = f"  {hit.title}" if hit.title else ""
    below = [hit.text, ", ".join(f"{name}: {value}" for name, value in hit.metadata.items() if value is not None)]
    lines = [textwrap.shorten(each, width=_WIDTH - 6, placeholder=" …") for each in below if each]
    return "\n      ".join([f"{hit.rank:4}. {hit.score:.4f}  [{hit.id}]{title}", *lines])
