"""Adding and deleting passages over HTTP."""

from __future__ import annotations

from pydantic import Field

from schemas.base import Model


class PassageIn(Model):
    """A passage to add, or to put in place of the one with its id."""

    id: str
    """Without whitespace or control characters."""
    title: str = ""
    text: str = ""
    """Title or text may be empty, not both."""
    collection: str = Field(default="served", min_length=1)
    """What a filter can name it by."""


class IngestRequest(Model):
    """Body of `POST /passages`: written in one step, or not at all."""

    passages: list[PassageIn] = Field(min_length=1)
    """No id twice."""


class IngestResponse(Model):
    """Answer of `POST /passages`."""

    added: int
    replaced: int
    """Those whose id was there with another title, text or collection."""
    unchanged: int
    """Those that were there as they are."""
    version: int
    """First version of the index with all of them; later searches on this replica are answered from it or a newer
    one, other replicas follow within seconds."""


class DeleteResponse(Model):
    """Answer of `DELETE /passages/{id}`."""

    deleted: int
    """1; a passage that is not there is a problem of status 404."""
    version: int
    """First version of the index without it."""
