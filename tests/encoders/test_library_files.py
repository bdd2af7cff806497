"""Files that the library method reads, fetches and refuses."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from diffretriever.core.files import write_bytes
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever
from diffretriever.schemas.settings import TRUST_VARIABLE
from tests.encoders.library_cases import TEXTS, change_json, encoder_of, published


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return published("bert", tmp_path, "mean", dense=True)


def digest_of(folder: Path) -> str:
    config = LibraryRetriever(backbone=BackboneConfig(source=str(folder)))
    return LibraryFiles.open(config, weights=True).digest(code=False)


def test_pooling_is_that_of_modules_json(model: Path) -> None:
    with pytest.raises(ValueError, match=r"modules\.json sets the pooling"):
        encoder_of(model, pooling="cls")


@pytest.mark.parametrize("folder", ["", "2_Dense"])
def test_pickles_are_refused(folder: str, model: Path) -> None:
    (model / folder / "model.safetensors").rename(model / folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no safetensors, and pickles are not read.*refs/pr/1"):
        encoder_of(model)


def test_models_for_chats_are_refused(model: Path) -> None:
    states = {"method": "forward", "method_output_name": "last_hidden_state"}
    change_json(model / "sentence_bert_config.json", modality_config={"text": states, "message": states})
    with pytest.raises(ValueError, match="made for chats or pictures"):
        encoder_of(model)


def test_the_digest_is_that_of_what_the_model_uses(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    assert digest_of(copy) == digest_of(model) == encoder_of(model).facts.weights
    (copy / "README.md").write_text("another card")
    assert digest_of(copy) == digest_of(model)
    digests = {digest_of(model)}
    for file in ("1_Pooling/config.json", "tokenizer_config.json", "config_sentence_transformers.json", "config.json"):
        change_json(copy / file, changed=True)
        digests.add(digest_of(copy))
    weights = copy / "2_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    digests.add(digest_of(copy))
    assert len(digests) == 6


def test_a_model_on_an_object_store_is_the_same_one(
    model: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    (model / "onnx").mkdir()
    (model / "onnx" / "model.safetensors").write_text("not read")
    uri = f"{bucket}/models/library"
    for file in model.rglob("*"):
        if file.is_file():
            write_bytes(f"{uri}/{file.relative_to(model).as_posix()}", file.read_bytes())
    retriever = LibraryRetriever(backbone=BackboneConfig(source=uri, dtype="float32"))
    prepared = load_preparer(retriever)
    fetched = tmp_path / "cache" / "fetched"
    assert not list(fetched.glob("*/**/*.safetensors")), "tokenising needs no weights"
    there, here = load_encoder(retriever, "cpu"), encoder_of(model)
    assert there.facts.weights == here.facts.weights
    assert not list(fetched.glob("*/onnx"))
    assert [text.input_ids.tolist() for text in prepared.prepare_queries(TEXTS)] == [
        text.input_ids.tolist() for text in here.preparer.prepare_queries(TEXTS)
    ]
    np.testing.assert_array_equal(there.encode_queries(TEXTS).vectors_MH, here.encode_queries(TEXTS).vectors_MH)


@pytest.mark.parametrize("code", [False, True])
def test_only_used_files_are_fetched(code: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "modeling.py").write_text("")
    (model / "pytorch_model.bin").write_text("")
    (model / "onnx").mkdir()
    (model / "onnx" / "model.safetensors").write_text("")
    (model / "onnx" / "config.json").write_text("{}")
    cache = tmp_path / "0123abc"

    def fetch(source: str, *, revision: str | None, allow_patterns: list[str], **options: Any) -> str:
        assert (source, revision) in {("some/model", "main"), ("some/model", "0123abc")}
        for name in (file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file()):
            chosen = any(fnmatch(name, pattern) for pattern in allow_patterns)
            if chosen and not any(fnmatch(name, pattern) for pattern in options["ignore_patterns"] or ()):
                (cache / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(model / name, cache / name)
        return str(cache)

    monkeypatch.setattr("diffretriever.backbones.source.snapshot_download", fetch)
    monkeypatch.setenv(TRUST_VARIABLE, "some/model@main" if code else "")
    place = BackboneConfig(source="some/model", revision="main")
    found = LibraryFiles.open(LibraryRetriever(backbone=place, remote_code=code), weights=True)
    fetched = {file.relative_to(cache).as_posix() for file in cache.rglob("*") if file.is_file()}
    wanted = {"modules.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors", "vocab.txt"}
    assert found.folder == cache
    assert wanted <= fetched | {"vocab.txt"}
    assert ("modeling.py" in fetched) == code
    assert not {name for name in fetched if name.startswith("onnx") or name.endswith(".bin")}
