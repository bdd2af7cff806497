"""`sentence-transformers/MODEL` as a retriever: a bi-encoder used as its own files say, without a YAML file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from sentence_transformers import SentenceTransformer

import diffretriever as dr
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import LibraryRetriever
from tests.encoders.library_cases import TEXTS, change_json, published

PROMPTS = {"query": "query: ", "document": "passage: "}
LONG = " ".join(TEXTS * 40)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts: not to be changed."""
    return published("bert", tmp_path_factory.mktemp("original"), "mean", prompts=PROMPTS)


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed at will."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def retriever(folder: Path) -> dr.Retriever:
    found = dr.Retriever(f"sentence-transformers/{folder}", device="cpu")
    assert isinstance(found.config, LibraryRetriever)
    place = found.config.backbone.model_copy(update={"dtype": "float32"})
    found.config = found.config.model_copy(update={"backbone": place})
    return found


def library(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})


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
    with pytest.raises(ValueError, match="some/model is a folder here, and a name of the hub"):
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
    made = PassageIndex.open(index.place).manifest.retriever
    assert isinstance(made, LibraryRetriever)
    assert made.similarity == expected
    theirs = library(model)
    scores = theirs.similarity(theirs.encode_query("honey"), theirs.encode_document(TEXTS))[0].numpy()
    found = dr.Index(index.place).search("honey", k=len(TEXTS))
    np.testing.assert_allclose([hit.score for hit in found], sorted(scores, reverse=True), rtol=2e-3)


def test_another_similarity_is_refused(model: Path) -> None:
    change_json(model / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    with pytest.raises(ValueError, match="compares vectors by euclidean: only cosine and dot are supported"):
        retriever(model).encode_queries("honey")
