"""Sources of an index's collections, because passages store only the name, and whether their encoding has finished."""

from __future__ import annotations

from diffretriever.collections import Collection
from diffretriever.core.files import read_model, write_text
from diffretriever.schemas.index import CollectionRecords

_FILE_NAME = "collections.json"


def refuse_other_locations(uri: str, collection: Collection) -> None:
    """Raise ValueError if a sync would delete passages of another collection with the same name."""
    source = collection.location()
    others = [location for location in _read(uri).locations.get(collection.name, ()) if location != source]
    if others and _has_location(collection):
        raise ValueError(
            f"sync would delete passages of {', '.join(others)} from {uri}, because {source} is called "
            f"'{collection.name}' too: rename its folder or file, or give it an index of its own; if the "
            f"collection has moved to {source}, remove {_file(uri)}"
        )


def record_location(uri: str, collection: Collection) -> None:
    """Record the path or URI of a collection, unless its documents are in memory."""
    records = _read(uri)
    before = records.locations.get(collection.name, ())
    if _has_location(collection) and collection.location() not in before:
        added = {collection.name: tuple(sorted([*before, collection.location()]))}
        _write(uri, records.model_copy(update={"locations": {**records.locations, **added}}))


def record_progress(uri: str, collection: Collection, *, finished: bool) -> None:
    """Record that the encoding of a collection has begun or finished, unless its documents are in memory."""
    records = _read(uri)
    if _has_location(collection) and (collection.name in records.unfinished) == finished:
        others = [name for name in records.unfinished if name != collection.name]
        unfinished = others if finished else [*others, collection.name]
        _write(uri, records.model_copy(update={"unfinished": tuple(unfinished)}))


def unfinished_collections(uri: str) -> tuple[str, ...]:
    """Return the names of collections whose encode job was interrupted or is running."""
    return _read(uri).unfinished


def _has_location(collection: Collection) -> bool:
    return collection.location() != collection.name


def _read(uri: str) -> CollectionRecords:
    try:
        return read_model(_file(uri), CollectionRecords, "remove it, and the next job writes it again")
    except FileNotFoundError:
        return CollectionRecords()


def _write(uri: str, records: CollectionRecords) -> None:
    write_text(_file(uri), records.model_dump_json(indent=2))


def _file(uri: str) -> str:
    return f"{uri.rstrip('/')}/{_FILE_NAME}"
