"""The paths and URIs of the collections of an index, in which passages name their collection only."""

from __future__ import annotations

from diffretriever.collections import Collection
from diffretriever.core.files import read_model, write_text
from diffretriever.schemas.index import CollectionPlaces

_FILE = "collections.json"


def refuse_other_places(uri: str, collection: Collection) -> None:
    """Raise ValueError if a sync with this collection would delete passages of another collection of the same name."""
    place = collection.place()
    others = [other for other in _noted(uri).get(collection.name, ()) if other != place]
    if others and _is_somewhere(collection):
        raise ValueError(
            f"sync would delete passages of {', '.join(others)} from {uri}, for {place} is called "
            f"'{collection.name}' too: rename its folder or file, or give it an index of its own; if the "
            f"collection has moved to {place}, remove {_file(uri)}"
        )


def note_place(uri: str, collection: Collection) -> None:
    """Record the path or URI of a collection in the index at `uri`; documents in memory have none."""
    noted = _noted(uri)
    places = {*noted.get(collection.name, ()), collection.place()}
    if _is_somewhere(collection) and len(places) > len(noted.get(collection.name, ())):
        noted[collection.name] = tuple(sorted(places))
        write_text(_file(uri), CollectionPlaces(places=noted).model_dump_json(indent=2))


def _is_somewhere(collection: Collection) -> bool:
    return collection.place() != collection.name


def _noted(uri: str) -> dict[str, tuple[str, ...]]:
    try:
        return read_model(_file(uri), CollectionPlaces, "remove it, and the next job writes it again").places
    except FileNotFoundError:
        return {}


def _file(uri: str) -> str:
    return f"{uri.rstrip('/')}/{_FILE}"
