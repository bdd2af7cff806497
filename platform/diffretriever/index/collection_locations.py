"""Paths and URIs of the collections of an index, because passages store only the collection's name."""

from __future__ import annotations

from diffretriever.collections import Collection
from diffretriever.core.files import read_model, write_text
from diffretriever.schemas.index import CollectionPlaces

_FILE_NAME = "collections.json"


def refuse_other_locations(uri: str, collection: Collection) -> None:
    """Raise ValueError if a sync would delete passages of another collection with the same name."""
    source = collection.location()
    others = [location for location in _recorded(uri).get(collection.name, ()) if location != source]
    if others and _has_location(collection):
        raise ValueError(
            f"sync would delete passages of {', '.join(others)} from {uri}, because {source} is called "
            f"'{collection.name}' too: rename its folder or file, or give it an index of its own; if the "
            f"collection has moved to {source}, remove {_file(uri)}"
        )


def record_location(uri: str, collection: Collection) -> None:
    """Record the path or URI of a collection, unless its documents are in memory."""
    recorded = _recorded(uri)
    locations = {*recorded.get(collection.name, ()), collection.location()}
    if _has_location(collection) and len(locations) > len(recorded.get(collection.name, ())):
        recorded[collection.name] = tuple(sorted(locations))
        write_text(_file(uri), CollectionPlaces(places=recorded).model_dump_json(indent=2))


def _has_location(collection: Collection) -> bool:
    return collection.location() != collection.name


def _recorded(uri: str) -> dict[str, tuple[str, ...]]:
    try:
        return read_model(_file(uri), CollectionPlaces, "remove it, and the next job writes it again").places
    except FileNotFoundError:
        return {}


def _file(uri: str) -> str:
    return f"{uri.rstrip('/')}/{_FILE_NAME}"
