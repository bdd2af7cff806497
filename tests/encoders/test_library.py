"""The library method with one vector a text, held against sentence-transformers' own `encode`.

Legend: B texts, H size of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from sentence_transformers import SentenceTransformer

from diffretriever.encoders import load_encoder
from diffretriever.encoders.library import LibraryEncoder
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever, PooledRetriever
from tests.encoders.library_cases import TEXTS, change_json, encoder_of, plain, published

KINDS = [("bert", "mean"), ("bert", "cls"), ("qwen3", "lasttoken"), ("mistral", "mean")]
ModelOf = Callable[..., Path]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
    """The folder of a model, written once: not to be changed."""
    made: dict[Any, Path] = {}

    def get(kind: str, pooling: str, *, dense: bool = False, prompts: dict[str, str] | None = None) -> Path:
        key = (kind, pooling, dense, repr(prompts))
        if key not in made:
            made[key] = published(kind, tmp_path_factory.mktemp("library"), pooling, dense=dense, prompts=prompts)
        return made[key]

    return get


def reference(folder: Path, texts: list[str], prompt: str | None, *, pool_prompt: bool = True) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    if not pool_prompt:
        model.set_pooling_include_prompt(include_prompt=False)
    # One by one, as what the library pads with is no part of what is tested.
    return np.stack([model.encode(text, prompt=prompt) for text in texts])


def own(encoder: LibraryEncoder, texts: list[str]) -> np.ndarray:
    """Vectors of queries in fp32, before anything is normalised or rounded."""
    return encoder.vectors(encoder.preparer.prepare_queries(texts))[0].numpy()


@pytest.mark.parametrize("pool_prompt", [True, False])
@pytest.mark.parametrize("prompt", [None, "", "query: ", "Instruct: find passages of rivers\nQuery:"])
@pytest.mark.parametrize(("kind", "pooling"), KINDS)
def test_vectors_are_the_librarys(
    kind: str, pooling: str, prompt: str | None, pool_prompt: bool, model_of: ModelOf
) -> None:
    folder = model_of(kind, pooling)
    expected_BH = reference(folder, TEXTS, prompt, pool_prompt=pool_prompt)
    encoder = encoder_of(folder, query_prompt=prompt, pool_prompt=pool_prompt)
    np.testing.assert_allclose(own(encoder, TEXTS), expected_BH, atol=2e-6, rtol=0)
    unit_BH = expected_BH / np.linalg.norm(expected_BH, axis=1, keepdims=True)
    found = encoder.encode_queries(TEXTS)
    assert found.vectors_MH.dtype == np.float16
    np.testing.assert_allclose(found.vectors_MH.astype(np.float32), unit_BH, atol=5e-4, rtol=0)
    assert found.offsets.tolist() == list(range(len(TEXTS) + 1))


def test_a_prompt_left_out_of_the_pooling_changes_the_vectors(model_of: ModelOf) -> None:
    folder = model_of("bert", "mean")
    with_prompt, without = (encoder_of(folder, query_prompt="honey: ", pool_prompt=pool) for pool in (True, False))
    assert np.abs(own(with_prompt, TEXTS) - own(without, TEXTS)).max() > 1e-2


def test_projection_and_normalisation_are_the_librarys(model_of: ModelOf) -> None:
    folder = model_of("bert", "mean", dense=True)
    encoder = encoder_of(folder)
    assert encoder.facts.hidden_size == 24
    np.testing.assert_allclose(own(encoder, TEXTS), reference(folder, TEXTS, None), atol=2e-6, rtol=0)


def test_prompts_in_the_models_own_files_are_used_unless_others_are_given(model_of: ModelOf) -> None:
    folder = model_of("bert", "mean", prompts={"query": "query: ", "document": "passage: "})
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    encoder = encoder_of(folder)
    passages = encoder.preparer.prepare_passages([""] * len(TEXTS), TEXTS)
    for found, expected in (
        (own(encoder, TEXTS), model.encode_query(TEXTS)),
        (encoder.vectors(passages)[0].numpy(), model.encode_document(TEXTS)),
        (own(encoder_of(folder, query_prompt=""), TEXTS), model.encode(TEXTS, prompt="")),
    ):
        np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


def test_a_model_of_plain_files_pools_as_the_library_would(tmp_path: Path) -> None:
    bert = plain("bert", tmp_path / "bert")
    np.testing.assert_allclose(own(encoder_of(bert), TEXTS), reference(bert, TEXTS, None), atol=2e-6, rtol=0)
    qwen = plain("qwen3", tmp_path / "qwen3")
    np.testing.assert_allclose(own(encoder_of(qwen), TEXTS), reference(qwen, TEXTS, None), atol=2e-6, rtol=0)
    poolings = [own(encoder_of(bert, pooling=pooling), TEXTS) for pooling in ("mean", "cls", "last")]
    assert np.array_equal(poolings[0], own(encoder_of(bert), TEXTS))
    assert min(np.abs(poolings[0] - poolings[1]).max(), np.abs(poolings[1] - poolings[2]).max()) > 1e-2


def test_the_embedded_model_is_that_of_our_own_backbone() -> None:
    preset = load_retriever("minilm-pooled")
    assert isinstance(preset, PooledRetriever)
    place = BackboneConfig(source="minilm", dtype="float32")
    ours = load_encoder(preset.model_copy(update={"backbone": place}), "cpu")
    theirs = load_encoder(LibraryRetriever(backbone=place, text=preset.text), "cpu")
    found = [encoder.encode_queries(TEXTS).vectors_MH.astype(np.float32) for encoder in (ours, theirs)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-3, rtol=0)


def test_the_librarys_models_take_no_packed_texts(model_of: ModelOf) -> None:
    place = BackboneConfig(source=str(model_of("bert", "mean")), attention="packed")
    with pytest.raises(ValueError, match="'packed' is not for this model, which computes texts with pads"):
        load_encoder(LibraryRetriever(backbone=place), "cpu")


def test_dot_keeps_the_vectors_as_they_are(model_of: ModelOf) -> None:
    folder = model_of("bert", "mean")
    found = encoder_of(folder, similarity="dot").encode_queries(TEXTS)
    expected_BH = reference(folder, TEXTS, None)
    np.testing.assert_array_equal(found.vectors_MH, expected_BH.astype(np.float16))
    assert np.abs(np.linalg.norm(expected_BH, axis=1) - 1).min() > 1


def test_a_dot_vector_that_float16_cannot_hold_is_refused(model_of: ModelOf) -> None:
    encoder = encoder_of(model_of("bert", "mean"), similarity="dot")
    encoder.model[0].model.encoder.layer[-1].output.LayerNorm.weight.data *= 1e6
    with pytest.raises(ValueError, match=r"float16.*similarity: cosine"):
        encoder.encode_queries(TEXTS)


def test_an_appended_end_equals_the_librarys_of_texts_with_it(model_of: ModelOf) -> None:
    folder = model_of("qwen3", "lasttoken")
    encoder = encoder_of(folder, append_eos=True, query_prompt="query: ")
    end = encoder.preparer.vocabulary.tokenizer.eos_token
    expected = reference(folder, [text + end for text in TEXTS], "query: ")
    np.testing.assert_allclose(own(encoder, TEXTS), expected, atol=2e-6, rtol=0)


def test_bidirectional_lets_early_tokens_see_later_ones(tmp_path: Path) -> None:
    folder = plain("mistral", tmp_path)
    # Code of the repository that does the same is not asked for.
    change_json(folder / "config.json", auto_map={"AutoModel": "modeling_grit.MistralModel"})
    encoder = encoder_of(folder, bidirectional=True, pooling="cls")
    assert np.abs(np.diff(own(encoder, ["honey a", "honey b"]), axis=0)).max() > 1e-2
    together = own(encoder, TEXTS)
    np.testing.assert_allclose(together, np.concatenate([own(encoder, [text]) for text in TEXTS]), atol=2e-6, rtol=0)


def test_a_family_that_stays_causal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain("mistral", tmp_path)
    always = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr("transformers.MistralConfig.is_causal", always, raising=False)
    with pytest.raises(ValueError, match="leave bidirectional out"):
        encoder_of(folder, bidirectional=True)
