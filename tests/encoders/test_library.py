"""The library method equals sentence-transformers' own `encode`.

Legend: B texts, H size of a vector.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from sentence_transformers import SentenceTransformer

import diffretriever as dr
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.library import LibraryEncoder
from diffretriever.encoders.preparer import from_arrow, to_arrow
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever, TextConfig
from tests.encoders.library_cases import TEXTS, change_json, encoder_of, plain, published

ModelOf = Callable[..., Path]
PROMPTS = {"query": "query: ", "document": "passage: "}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
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
    return encoder.vectors(encoder.preparer.prepare_queries(texts))[0].numpy()


@pytest.mark.parametrize(
    ("kind", "pooling", "fields"),
    [
        ("bert", None, {}),
        ("qwen3", None, {}),
        ("bert", "mean", {}),
        ("bert", "mean", {"similarity": "dot"}),
        ("bert", "cls", {"query_prompt": "query: "}),
        ("qwen3", "lasttoken", {"query_prompt": "query: "}),
        ("qwen3", "lasttoken", {"query_prompt": "query: ", "append_eos": True}),
        ("mistral", "mean", {"query_prompt": "Find rivers\n:", "pool_prompt": False}),
    ],
)
def test_vectors_are_the_librarys(
    kind: str, pooling: str | None, fields: dict[str, Any], model_of: ModelOf, tmp_path: Path
) -> None:
    """`pooling` None: a checkpoint without modules.json."""
    folder = plain(kind, tmp_path) if pooling is None else model_of(kind, pooling, dense=pooling == "cls")
    encoder = encoder_of(folder, **fields)
    end = encoder.preparer.vocabulary.tokenizer.eos_token if fields.get("append_eos") else ""
    pool_prompt = fields.get("pool_prompt", True)
    expected_BH = reference(folder, [text + end for text in TEXTS], fields.get("query_prompt"), pool_prompt=pool_prompt)
    np.testing.assert_allclose(own(encoder, TEXTS), expected_BH, atol=2e-6, rtol=0)
    lengths_B1 = np.linalg.norm(expected_BH, axis=1, keepdims=True)
    stored_BH = expected_BH if "similarity" in fields else expected_BH / lengths_B1
    actual = encoder.encode_queries(TEXTS)
    assert actual.vectors_MH.dtype == np.float16
    np.testing.assert_allclose(actual.vectors_MH.astype(np.float32), stored_BH, atol=5e-4, rtol=1e-3)
    assert actual.offsets.tolist() == list(range(len(TEXTS) + 1))


def test_poolings_of_a_model_of_plain_files_differ(tmp_path: Path) -> None:
    bert = plain("bert", tmp_path)
    poolings = [own(encoder_of(bert, pooling=pooling), TEXTS) for pooling in ("mean", "cls", "last")]
    assert np.array_equal(poolings[0], own(encoder_of(bert), TEXTS))
    assert min(np.abs(poolings[0] - poolings[1]).max(), np.abs(poolings[1] - poolings[2]).max()) > 1e-2


def test_prompts_in_the_models_own_files_are_used_unless_others_are_given(model_of: ModelOf) -> None:
    folder = model_of("bert", "mean", prompts=PROMPTS)
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    encoder = encoder_of(folder)
    passages = encoder.preparer.prepare_passages([""] * len(TEXTS), TEXTS)
    for actual, expected in (
        (own(encoder, TEXTS), model.encode_query(TEXTS)),
        (encoder.vectors(passages)[0].numpy(), model.encode_document(TEXTS)),
        (own(encoder_of(folder, query_prompt=""), TEXTS), model.encode(TEXTS, prompt="")),
    ):
        np.testing.assert_allclose(actual, expected, atol=2e-6, rtol=0)


def test_bidirectional_lets_early_tokens_see_later_ones(tmp_path: Path) -> None:
    folder = plain("mistral", tmp_path)
    # Code of the repository that does the same is not asked for.
    change_json(folder / "config.json", auto_map={"AutoModel": "modeling_grit.MistralModel"})
    encoder = encoder_of(folder, bidirectional=True, pooling="cls")
    assert np.abs(np.diff(own(encoder, ["honey a", "honey b"]), axis=0)).max() > 1e-2
    together = own(encoder, TEXTS)
    np.testing.assert_allclose(together, np.concatenate([own(encoder, [text]) for text in TEXTS]), atol=2e-6, rtol=0)


def test_bidirectional_is_refused_if_the_model_stays_causal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain("mistral", tmp_path)
    always = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr("transformers.MistralConfig.is_causal", always, raising=False)
    with pytest.raises(ValueError, match="remove bidirectional"):
        encoder_of(folder, bidirectional=True)


@pytest.mark.parametrize(("semantics", "length"), [("total", 20), ("text", 20 + 2 + 2)])
def test_truncation_cuts_the_text_only(semantics: Any, length: int, model_of: ModelOf) -> None:
    text = TextConfig(max_query_tokens=20, length_semantics=semantics)
    encoder = encoder_of(model_of("bert", "mean"), query_prompt="query: ", text=text)
    (long,) = encoder.preparer.prepare_queries(["river " * 1000])
    (whole,) = encoder.preparer.prepare_queries(["river"])
    river = whole.input_ids[3]
    assert long.input_ids.tolist() == [*whole.input_ids[:3], *[river] * (length - 4), whole.input_ids[-1]]
    assert long.n_tokens == length
    short = TextConfig(max_query_tokens=5, length_semantics="total")
    with pytest.raises(ValueError, match="no tokens left for the text"):
        encoder_of(model_of("bert", "mean"), query_prompt="a b c", text=short).encode_queries(["river"])


def test_preparing_needs_no_weights_and_travels_as_arrow(tmp_path: Path) -> None:
    folder = published("bert", tmp_path, "mean")
    encoder = encoder_of(folder, query_prompt="query: ", pool_prompt=False)
    (folder / "model.safetensors").unlink()
    prepared = from_arrow(to_arrow(load_preparer(encoder.config).prepare_queries(TEXTS)))
    assert {text.prefix_tokens for text in prepared} == {3}
    np.testing.assert_array_equal(encoder.encode(prepared).vectors_MH, encoder.encode_queries(TEXTS).vectors_MH)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vectors": "token", "similarity": "dot", "pooling": "cls"}, "leave pooling and similarity out"),
        ({"bidirectional": True, "remote_code": True}, "leave out remote_code"),
        ({"backbone": {"source": "minilm", "adapter": "some/adapter"}}, "takes no adapter"),
        ({"backbone": {"source": "minilm", "attention": "packed"}}, "does not support attention 'packed'"),
        ({"vectors": "token"}, "not a late-interaction model"),
    ],
)
def test_contradicting_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_encoder(LibraryRetriever.model_validate({"backbone": {"source": "minilm"}, **fields}), "cpu")


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.encoders.library_files.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'diffretriever\[models\]'"):
        load_preparer(LibraryRetriever(backbone=BackboneConfig(source="minilm")))


@pytest.fixture
def model(model_of: ModelOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_of("bert", "mean", prompts=PROMPTS), tmp_path / "model"))


def retriever(folder: Path) -> dr.Retriever:
    actual = dr.Retriever(f"sentence-transformers/{folder}", device="cpu")
    assert isinstance(actual.config, LibraryRetriever)
    place = actual.config.backbone.model_copy(update={"dtype": "float32"})
    actual.config = actual.config.model_copy(update={"backbone": place})
    return actual


def source_of(name: str) -> str:
    config = load_retriever(name)
    assert isinstance(config, LibraryRetriever)
    return config.backbone.source


def test_the_name_is_what_the_library_takes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_of("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"
    assert source_of("sentence-transformers/BAAI/bge-base-en") == "BAAI/bge-base-en"
    assert source_of("sentence-transformers/s3://bucket/model") == "s3://bucket/model"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(model), "./model", "~/model"):
        assert source_of(f"sentence-transformers/{path}") == str(model)
    assert source_of("sentence-transformers/model") == "sentence-transformers/model", "a bare name is the hub's"
    (tmp_path / "some" / "model").mkdir(parents=True)
    with pytest.raises(ValueError, match="some/model is both a local folder and a hub id"):
        load_retriever("sentence-transformers/some/model")
    with pytest.raises(ValueError, match=r"sentence-transformers/\./modle: there is no folder modle"):
        load_retriever("sentence-transformers/./modle")
    with pytest.raises(ValueError, match="name a model, such as sentence-transformers/all-MiniLM-L6-v2"):
        load_retriever("sentence-transformers/")
    with pytest.raises(ValueError, match=r"Or give a \.yaml file, or sentence-transformers/MODEL\."):
        load_retriever("sentence-transformer/x")


@pytest.mark.parametrize(
    ("named", "normalised", "expected"),
    [(None, False, "cosine"), ("cosine", False, "cosine"), ("dot", False, "dot"), ("dot", True, "cosine")],
)
def test_vectors_are_normalised_as_the_model_says(
    named: str | None, normalised: bool, expected: str, model: Path, tmp_path: Path
) -> None:
    if normalised:
        model = published("bert", tmp_path / "normalised", "mean", dense=True)
    change_json(model / "config_sentence_transformers.json", similarity_fn_name=named)
    index = dr.Index.create(tmp_path / "index", TEXTS, retriever=retriever(model))
    made = PassageIndex.open(index.location).manifest.retriever
    assert isinstance(made, LibraryRetriever)
    assert made.similarity == expected
    theirs = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": "float32"})
    scores = theirs.similarity(theirs.encode_query("honey"), theirs.encode_document(TEXTS))[0].numpy()
    actual = dr.Index(index.location).search("honey", k=len(TEXTS))
    np.testing.assert_allclose([hit.score for hit in actual], sorted(scores, reverse=True), rtol=2e-3)


def test_another_similarity_is_refused(model: Path) -> None:
    change_json(model / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    with pytest.raises(ValueError, match="compares vectors by euclidean: only cosine and dot are supported"):
        retriever(model).encode_queries("honey")
