from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diffretriever.collections.keys import KeySet, keys_of, repeated_ids

IDS = st.sampled_from("abcdefgh")
TEXTS = st.sampled_from("xyz")


def keys(pairs: list[tuple[str, str]]) -> np.ndarray:
    return keys_of((i for i, _ in pairs), (hashlib.blake2b(text.encode()).digest() for _, text in pairs))


@given(st.dictionaries(IDS, TEXTS), st.lists(st.tuples(IDS, TEXTS)))
def test_a_set_knows_what_it_holds(held: dict[str, str], asked: list[tuple[str, str]]) -> None:
    known = KeySet(keys(list(held.items())).copy())
    assert len(known) == len(held)
    has_id, same = known.compare(keys(asked))
    assert same.tolist() == [held.get(i) == text for i, text in asked]
    assert has_id.tolist() == known.has_ids([i for i, _ in asked]).tolist() == [i in held for i, _ in asked]


@given(st.lists(st.lists(st.tuples(IDS, TEXTS)), max_size=4))
def test_repeated_ids_name_the_first(parts: list[list[tuple[str, str]]]) -> None:
    later, first = repeated_ids([keys(part) for part in parts])
    ids = [i for part in parts for i, _ in part]
    expected = [(place, ids.index(i)) for place, i in enumerate(ids) if ids.index(i) < place]
    assert list(zip(later.tolist(), first.tolist(), strict=True)) == expected
