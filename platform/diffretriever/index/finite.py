"""Rows with NaN or infinity: refused before they are written, and wherever they are met in an index that has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from diffretriever.encoders.representations import rows_not_finite

_NAMED = 5


class NotFiniteError(ValueError):
    """Passages of an index hold NaN or infinity; the message names them."""


def refuse_to_write(table: pa.Table) -> None:
    """Raise ValueError for rows (with `id` and `collection`) whose vectors or impact weights are not finite."""
    wrong = table.take(rows_not_finite(table))
    if len(wrong):
        ids, collections = wrong.column("id").to_pylist(), sorted(set(wrong.column("collection").to_pylist()))
        raise ValueError(
            f"{', '.join(collections)}: {named(ids)} would be stored with NaN or infinity, so none of its block is "
            "written: look for damaged weights, encode in float32, or leave such passages out"
        )


def refuse_rows(uri: str, rows: pa.Table | pa.RecordBatch) -> None:
    """Raise NotFiniteError if rows that are stored at `uri` (with `id`) have vectors or weights that are not finite."""
    wrong = rows_not_finite(rows)
    if len(wrong):
        raise stored_not_finite(uri, rows.column("id").take(pa.array(wrong)).to_pylist())


def finite_rows(uri: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on what is read of the index at `uri`; raises as `refuse_rows`."""
    for batch in batches:
        refuse_rows(uri, batch)
        yield batch


def stored_not_finite(uri: str, ids: Sequence[str]) -> NotFiniteError:
    """Return the error of whoever meets such passages in an index."""
    return NotFiniteError(
        f"{uri} holds NaN or infinity for {named(ids)}, and every ranking would be wrong: "
        f"`python jobs/inspect_index.py --index {uri} --verify` names all such passages; delete them with "
        "jobs/maintain_index.py, and encode the collection again to add them"
    )


def named(ids: Sequence[str]) -> str:
    """Return the first few passages in words, and how many more there are."""
    first = ", ".join(f"'{passage_id}'" for passage_id in ids[:_NAMED])
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{'passage' if len(ids) == 1 else 'passages'} {first}{more}"
