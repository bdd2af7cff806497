"""Representations and prepared texts survive Arrow tables, slices and chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.encoders import preparer as prepared
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import PREPARED_SCHEMA, PreparedText
from diffretriever.schemas.index import representation_fields
from diffretriever.vectors.representations import Representations, read_impacts, read_vectors
from tests.encoders.encoder_cases import TEXTS, assert_identical, encoded

N = len(TEXTS)


@pytest.fixture(params=["masked-dream", "tokens-modernbert-clusters"])
def encoder(request: pytest.FixtureRequest, encoder_of: Callable[[str], Encoder]) -> Encoder:
    return encoder_of(request.param)


@pytest.fixture
def actual(encoder: Encoder) -> Representations:
    return encoded(encoder, tuple(1 + row % 3 for row in range(N)))


def test_arrow_holds_every_bit(actual: Representations) -> None:
    table = actual.to_arrow()
    assert table.schema.equals(pa.schema(representation_fields(actual.hidden_size)))
    assert_identical(Representations.from_arrow(table), actual)
    assert_identical(Representations.from_arrow(table.append_column("other", pa.array(range(N)))), actual)


def test_arrow_slices_and_chunks(actual: Representations) -> None:
    table = actual.to_arrow()
    assert_identical(Representations.from_arrow(table.slice(2, 3)), actual.take(np.arange(2, 5)))
    chunks = pa.concat_tables([table.slice(5), table.slice(0, 0), table.slice(0, 2).slice(1)])
    assert chunks.column("reps").num_chunks > 1
    assert_identical(Representations.from_arrow(chunks), actual.take(np.array([*range(5, N), 1])))


def test_arrow_record_batches(actual: Representations) -> None:
    """A slice of a batch keeps its parent's buffers and offsets."""
    (batch,) = actual.to_arrow().to_batches()
    expected = actual.take(np.arange(2, 5))
    vectors_MH, offsets = read_vectors(batch.slice(2, 3))
    ids, weights, impact_offsets = read_impacts(batch.slice(2, 3))
    read = Representations(
        vectors_MH, offsets, expected.slot_tokens, ids, weights, impact_offsets, n_tokens=expected.n_tokens
    )
    assert_identical(read, expected)


def test_arrow_of_no_texts(actual: Representations) -> None:
    none = actual.take(np.zeros(0, np.int64))
    assert none.vectors_MH.shape == (0, actual.hidden_size)
    for table in (none.to_arrow(), actual.to_arrow().slice(3, 0), actual.to_arrow().schema.empty_table()):
        assert_identical(Representations.from_arrow(table), none)


def test_take_and_concatenate(actual: Representations) -> None:
    singles = [actual.take(np.array([row])) for row in range(N)]
    assert_identical(Representations.concatenate(singles), actual)
    assert_identical(Representations.concatenate([actual]), actual)
    order = np.array([3, 0, 3, 6, 1])
    assert_identical(actual.take(order), Representations.concatenate([singles[row] for row in order]))
    assert_identical(actual.take(order).take(np.arange(5)[::-1]), actual.take(order[::-1]))


def fields(text: PreparedText) -> list[int | list[int]]:
    arrays = (text.input_ids, text.content_ids, text.variant_ids, text.vector_positions)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    return [text.slots, text.n_tokens, text.prefix_tokens, *(array.tolist() for array in arrays)]


def test_prepared_texts_in_arrow(encoder: Encoder) -> None:
    texts = encoder.preparer.prepare_queries(TEXTS)
    table = prepared.to_arrow(texts)
    assert table.schema.equals(PREPARED_SCHEMA)
    expected = [fields(text) for text in texts]
    assert [fields(text) for text in prepared.from_arrow(table)] == expected
    chunks = pa.concat_tables([table.slice(3, 2), table.slice(0, 2).slice(1)])
    assert [fields(text) for text in prepared.from_arrow(chunks)] == [*expected[3:5], expected[1]]
    assert prepared.from_arrow(table.slice(0, 0)) == prepared.from_arrow(prepared.to_arrow([])) == []
