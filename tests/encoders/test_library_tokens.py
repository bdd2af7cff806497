"""Late interaction equals sentence-transformers' `MultiVectorEncoder`.

Legend: K vectors of a text, H size of a vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from sentence_transformers import MultiVectorEncoder

from diffretriever.encoders.library import LibraryEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.retriever import TextConfig
from tests.encoders.library_cases import TEXTS, encoder_of, late_interaction

FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("native", {}),
    "native-fixed": ("native", {"strategy": "fixed", "length": 12}),
    "native-min-attended": ("native", {"strategy": "min", "length": 20, "attend": True, "token": "honey"}),
    "pylate": ("pylate", {}),
    "stanford": ("stanford", {}),
}
PUNCTUATED = [*TEXTS, "river, (honey)! ...", "", "honey " * 100]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("late-interaction")
    return {name: late_interaction(kind, root / name, **fields) for name, (kind, fields) in FOLDERS.items()}


def split(encoder: LibraryEncoder, prepared: list[PreparedText]) -> list[np.ndarray]:
    vectors_MH, counts = encoder.vectors(prepared)
    return np.split(vectors_MH.numpy(), np.cumsum(counts)[:-1])


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_the_librarys(name: str, folders: dict[str, Path]) -> None:
    library = MultiVectorEncoder(str(folders[name]), device="cpu", model_kwargs={"dtype": "float32"})
    encoder = encoder_of(folders[name], vectors="token")
    queries = encoder.preparer.prepare_queries(PUNCTUATED)
    passages = encoder.preparer.prepare_passages([""] * len(PUNCTUATED), PUNCTUATED)
    for prepared, encode in ((queries, library.encode_query), (passages, library.encode_document)):
        # One by one, as what the library pads with is no part of what is tested.
        expected = [encode(text, convert_to_numpy=True) for text in PUNCTUATED]
        for found_KH, expected_KH in zip(split(encoder, prepared), expected, strict=True):
            assert found_KH.shape == expected_KH.shape
            np.testing.assert_allclose(found_KH, expected_KH, atol=2e-6, rtol=0)
    rounded = encoder.encode_queries(PUNCTUATED)
    in_fp32 = np.concatenate(split(encoder, queries))
    np.testing.assert_allclose(rounded.vectors_MH.astype(np.float32), in_fp32, atol=5e-4, rtol=0)
    assert np.diff(rounded.offsets).tolist() == [text.slots for text in queries]


@pytest.mark.parametrize("name", ["native-fixed", "pylate", "stanford"])
def test_the_length_of_queries_can_be_another(name: str, folders: dict[str, Path]) -> None:
    """Queries are padded and truncated to it; passages are not."""
    text = TextConfig(max_query_tokens=20, length_semantics="total")
    own, longer = (encoder_of(folders[name], vectors="token", text=text, query_length=n) for n in (None, 20))
    assert set(np.diff(longer.encode_queries(PUNCTUATED).offsets)) == {20}
    for actual, expected in zip(
        longer.preparer.prepare_passages([""] * 2, TEXTS[:2]),
        own.preparer.prepare_passages([""] * 2, TEXTS[:2]),
        strict=True,
    ):
        assert actual.input_ids.tolist() == expected.input_ids.tolist()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("native", ["passage", "river", "honey"]),
        ("pylate", ["[d] ", "river", "!"]),
        ("stanford", ["[unused1]", "river", "honey"]),
    ],
)
def test_skipped_words_have_no_vector_in_passages(name: str, kept: list[str], folders: dict[str, Path]) -> None:
    encoder = encoder_of(folders[name], vectors="token")
    (prepared,) = encoder.preparer.prepare_passages([""], ["river, honey!"])
    with_vector = prepared.input_ids[prepared.vector_positions].tolist()
    words = encoder.preparer.vocabulary.tokenizer.convert_ids_to_tokens(with_vector)
    assert words == ["[CLS]", *kept, "[SEP]"]
    # Nothing is skipped in queries.
    (query,) = encoder.preparer.prepare_queries(["river, honey!"])
    assert query.slots == len(query.input_ids)


def test_late_interaction_models_need_vectors_token(folders: dict[str, Path]) -> None:
    for name in ("native", "pylate", "stanford"):
        with pytest.raises(ValueError, match="not a model of one vector per text"):
            encoder_of(folders[name])
