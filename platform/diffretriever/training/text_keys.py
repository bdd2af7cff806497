"""When two texts are the same for training: the same words in the same order, whatever their case and spaces."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np

from diffretriever.collections import BadRecord, Collection
from diffretriever.collections.base import Passage


def text_key(text: str) -> int:
    """Return 64 bits of BLAKE2b of the text in NFKC, case folded, runs of whitespace as one space."""
    normal = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.blake2b(normal.encode(), digest_size=8).digest(), "little")


def passage_key(passage: Passage) -> int:
    """Return the key of the passage's text, of its title where it has no text.

    The title does not count beside a text: collections differ in whether they have titles at all.
    """
    return text_key(passage.text if passage.text.strip() else passage.title)


def keys_of(collections: Iterable[Collection]) -> np.ndarray:
    """Return the keys of all passages and of all splits' queries, uint64, ascending, none twice."""
    keys: list[np.ndarray] = [np.empty(0, np.uint64)]
    for collection in collections:
        passages = (record for record in collection.records() if not isinstance(record, BadRecord))
        keys.append(np.fromiter((passage_key(passage) for passage in passages), np.uint64))
        queries = (query for split in collection.splits() for query in collection.queries(split))
        keys.append(np.fromiter((text_key(query.text) for query in queries), np.uint64))
    return np.unique(np.concatenate(keys))


def are_in(keys: Iterable[int], known: np.ndarray) -> np.ndarray:
    """Return for each key whether it is in `known`, ascending uint64; a bool array."""
    wanted = np.fromiter(keys, np.uint64)
    if not len(known):
        return np.zeros(len(wanted), bool)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return known[places] == wanted
