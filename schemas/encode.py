"""What an encode job says at its end."""

from __future__ import annotations

from schemas.base import Model


class EncodeSummary(Model):
    """The outcome of one encode job; counts are passages."""

    index: str
    """Where the index is."""
    fingerprint: str
    """Fingerprint of the retriever that made it."""
    encoded: int
    """Encoded and committed by this job."""
    already_there: int
    """In the index before with the same text; not encoded again."""
    skipped: int
    """In the index with another text, left as they were (`--on-existing skip`)."""
    replaced: int
    """In the index with another text, replaced (`--on-existing replace`); counted in `encoded` too."""
    bad: int
    """Records set aside."""
    bad_reasons: dict[str, int]
    """Why, by kind."""
    quarantine: str | None
    """File that holds the bad records, if there are any."""
    rows: int
    """In the index now."""
    seconds: float
    """Duration of the job without Ray's start."""
    steady_rate: float
    """Passages per second from the first finished block to the last; 0 where there were fewer than two."""
