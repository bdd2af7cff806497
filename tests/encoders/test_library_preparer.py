"""How the library method prepares texts: limits, special tokens, texts of nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from diffretriever.encoders import load_preparer
from diffretriever.encoders.preparer import from_arrow, to_arrow
from diffretriever.schemas.retriever import TextConfig
from tests.encoders.library_cases import TEXTS, encoder_of, published


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with special tokens around every text: not to be changed."""
    return published("bert", tmp_path_factory.mktemp("library-bert"), "mean")


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer adds nothing: not to be changed."""
    return published("mistral", tmp_path_factory.mktemp("library-mistral"), "mean")


@pytest.mark.parametrize(("semantics", "length"), [("total", 20), ("text", 20 + 2 + 2)])
def test_truncation_cuts_the_text_only(semantics: Any, length: int, bert: Path) -> None:
    text = TextConfig(max_query_tokens=20, length_semantics=semantics)
    encoder = encoder_of(bert, query_prompt="query: ", text=text)
    (long,) = encoder.preparer.prepare_queries(["river " * 1000])
    (whole,) = encoder.preparer.prepare_queries(["river"])
    river = whole.input_ids[3]
    assert long.input_ids.tolist() == [*whole.input_ids[:3], *[river] * (length - 4), whole.input_ids[-1]]
    assert long.n_tokens == length
    short = TextConfig(max_query_tokens=5, length_semantics="total")
    with pytest.raises(ValueError, match="no room for the text"):
        encoder_of(bert, query_prompt="a b c", text=short).encode_queries(["river"])


def test_the_models_own_length_is_kept(bert: Path, mistral: Path) -> None:
    for folder in (bert, mistral):
        encoder = encoder_of(folder, text=TextConfig(max_query_tokens=4000))
        assert len(encoder.preparer.prepare_queries(["river " * 4000])[0].input_ids) == 512


def test_special_tokens_spelled_in_a_text_stay_text(bert: Path) -> None:
    encoder = encoder_of(bert)
    special = set(encoder.preparer.vocabulary.tokenizer.all_special_ids) - {1}
    (spelled,) = encoder.preparer.prepare_queries(["river [SEP] [MASK] honey"])
    assert sum(i in special for i in spelled.input_ids.tolist()) == 2


def test_texts_of_nothing_have_a_vector(mistral: Path) -> None:
    for prompt, pool_prompt in (("", True), ("query:", True), ("query:", False)):
        encoder = encoder_of(mistral, query_prompt=prompt, pool_prompt=pool_prompt)
        vectors = encoder.encode_queries(["", "river"]).vectors_MH.astype(np.float32)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)


def test_preparing_needs_no_weights_and_travels_as_arrow(tmp_path: Path) -> None:
    folder = published("bert", tmp_path, "mean")
    encoder = encoder_of(folder, query_prompt="query: ", pool_prompt=False)
    (folder / "model.safetensors").unlink()
    prepared = from_arrow(to_arrow(load_preparer(encoder.config).prepare_queries(TEXTS)))
    assert {text.prefix_tokens for text in prepared} == {3}
    np.testing.assert_array_equal(encoder.encode(prepared).vectors_MH, encoder.encode_queries(TEXTS).vectors_MH)
