from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diffretriever.collections.keys import KEY, KeySet, keys_of, repeated_ids

IDS = st.sampled_from("abcdefgh")
TEXTS = st.sampled_from("xyz")


def keys(pairs: list[tuple[str, str]]) -> np.ndarray:
    return keys_of((i for i, _ in pairs), (hashlib.blake2b(text.encode()).digest() for _, text in pairs))


@given(st.dictionaries(IDS, TEXTS), st.lists(st.tuples(IDS, TEXTS)))
def test_a_set_knows_what_it_holds(held: dict[str, str], asked: list[tuple[str, str]]) -> None:
    known = KeySet(keys(list(held.items())).copy())
    assert len(known) == len(held)
    assert known.hold(keys(asked)).tolist() == [held.get(i) == text for i, text in asked]
    assert known.hold_id(keys(asked)).tolist() == [i in held for i, _ in asked]
    without_text = keys_of([i for i, _ in asked], [b""] * len(asked))
    assert known.hold_id(without_text).tolist() == [i in held for i, _ in asked]


@given(st.lists(st.lists(st.tuples(IDS, TEXTS)), max_size=4))
def test_repeated_ids_name_the_first(parts: list[list[tuple[str, str]]]) -> None:
    later, first = repeated_ids([keys(part) for part in parts])
    ids = [i for part in parts for i, _ in part]
    expected = [(place, ids.index(i)) for place, i in enumerate(ids) if ids.index(i) < place]
    assert list(zip(later.tolist(), first.tolist(), strict=True)) == expected


def test_keys_that_end_in_nul_stay_what_they_are() -> None:
    endings = np.frombuffer(b"".join(bytes([7] * 14 + [a, b]) for a, b in [(0, 0), (0, 1), (1, 0)]), KEY)
    known = KeySet(endings[[0, 2]])
    assert known.hold(endings).tolist() == [True, False, True]
    assert known.hold_id(endings).all()
