"""Search results: text in a terminal, a table in a notebook, a data frame."""

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
    """A retrieved passage.

    Example:
        >>> hit = index.search("roses", k=1)[0]
        >>> hit.rank, hit.id, hit.text, hit.metadata
        (1, 'roses', 'Prune roses in late winter.', {'year': 2021})
    """

    rank: int
    """Starts at 1."""
    id: str
    score: float
    title: str
    text: str
    collection: str
    """Collection of the passage."""
    metadata: dict[str, Scalar | None] = field(default_factory=dict, hash=False)
    """Other stored fields; None if the passage has no value."""


@dataclass(frozen=True)
class Results(Sequence[Hit]):
    """The passages retrieved for one query, best first.

    Example:
        >>> results = index.search("roses", k=1)
        >>> results[0].id, results.to_pandas()["year"].tolist()
        ('roses', [2021])
    """

    query: str
    mode: Mode
    """Score that ranks the passages."""
    hits: tuple[Hit, ...]

    @overload
    def __getitem__(self, position: int) -> Hit: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[Hit, ...]: ...

    def __getitem__(self, position: int | slice) -> Hit | tuple[Hit, ...]:
        """Return the hit at a position from 0, or a slice."""
        return self.hits[position]

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def ids(self) -> list[str]:
        """The passages' ids, best first."""
        return [hit.id for hit in self.hits]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per hit: the fields of `Hit`, then metadata (`metadata.NAME` if `Hit` has that field)."""
        import pandas as pd

        names = [name for name in Hit.__dataclass_fields__ if name != "metadata"]
        rows = [{name: getattr(hit, name) for name in names} for hit in self.hits]
        metadata = [
            {f"metadata.{name}" if name in names else name: value for name, value in hit.metadata.items()}
            for hit in self.hits
        ]
        return pd.DataFrame(
            [{**row, **fields} for row, fields in zip(rows, metadata, strict=True)],
            columns=[*names, *(metadata[0] if metadata else ())],
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
    lines = [textwrap.shorten(text, width=_WIDTH - 6, placeholder=" …") for text in below if text]
    return "\n      ".join([f"{hit.rank:4}. {hit.score:.4f}  [{hit.id}]{title}", *lines])
