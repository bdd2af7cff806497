"""The protocols that published rows are run under, and a row under one."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.protocols import Protocol, Setup, protocols, under_protocol, with_settings
from diffretriever.schemas.base import suggest
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.studies.reproduction.config import PublishedRow, PublishedTable

DEFAULT = ("authors", "paper")
"""What a reproduction runs where nobody says which."""


def chosen(names: Sequence[str]) -> list[Protocol]:
    """Return the protocols of these names, `DEFAULT` for none."""
    known = protocols()
    for name in names:
        if name not in known:
            raise ValueError(f"--protocol: no protocol '{name}'.{suggest(name, known)}")
    return [known[name] for name in dict.fromkeys(names or DEFAULT)]


def under(table: PublishedTable, protocol: Protocol) -> PublishedTable:
    """Return the table with its rows under the protocol, which is said in its caption."""
    rows = tuple(row.model_copy(update={"protocol": protocol.id}) for row in table.rows)
    caption = f"{table.caption} Protocol {protocol.id}: {protocol.about}."
    return table.model_copy(update={"protocol": protocol.id, "caption": caption, "rows": rows})


def set_up(row: PublishedRow, preset: RetrieverConfig) -> Setup:
    """Return what runs the row: its preset, changed by the protocol that it is under, then by its own settings."""
    own = with_settings(preset, row.settings)
    if row.protocol is None:
        return Setup(own, {})
    found = under_protocol(own, row.protocol, row.regime or ("fine-tuned" if row.needs_adapter else None))
    return Setup(with_settings(found.config, row.settings), found.search)
