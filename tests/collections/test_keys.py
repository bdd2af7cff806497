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
def test_key_sets_compare_ids_and_texts(indexed: dict[str, str], passages: list[tuple[str, str]]) -> None:
    key_set = KeySet(keys(list(indexed.items())).copy())
    assert len(key_set) == len(indexed)
    has_id, same = key_set.compare(keys(passages))
    assert same.tolist() == [indexed.get(i) == text for i, text in passages]
    assert has_id.tolist() == key_set.has_ids([i for i, _ in passages]).tolist() == [i in indexed for i, _ in passages]


@given(st.lists(st.lists(st.tuples(IDS, TEXTS)), max_size=4))
def test_repeated_ids_have_the_position_of_the_first(parts: list[list[tuple[str, str]]]) -> None:
    later, first = repeated_ids([keys(part) for part in parts])
    ids = [i for part in parts for i, _ in part]
    expected = [(position, ids.index(i)) for position, i in enumerate(ids) if ids.index(i) < position]
    assert list(zip(later.tolist(), first.tolist(), strict=True)) == expected
