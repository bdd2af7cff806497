"""An index rejects another tokenizer or precision of its encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diffretriever.encoders import load_encoder
from diffretriever.front.index import Index
from diffretriever.front.retriever import Retriever
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encoder_start import EncoderStart
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import NeuralRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.search import open_searcher
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.search.conftest import fill


def retriever(folder: Path) -> NeuralRetriever:
    loaded = load_retriever("diffretriever-dream", str(folder))
    assert loaded.method == "masked"
    return loaded.model_copy(update={"backbone": loaded.backbone.model_copy(update={"dtype": "float32"})})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PassageIndex]:
    """A Dream checkpoint with vocab.json and merges.txt, and an index made with it."""
    folder = write_random_checkpoint("dream", tmp_path_factory.mktemp("dream") / "model")
    return folder, fill(load_encoder(retriever(folder), "cpu"), str(folder.parent / "index"))


def changed_config(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


CHANGES: dict[str, Callable[[Path], object]] = {
    "merges emptied": lambda folder: (folder / "merges.txt").write_text(""),
    "another template": lambda folder: changed_config(
        folder / "tokenizer_config.json", chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}"
    ),
    "another special token": lambda folder: changed_config(folder / "tokenizer_config.json", pad_token="<|im_start|>"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_tokenizer_is_refused(change: str, made: tuple[Path, PassageIndex], tmp_path: Path) -> None:
    folder, index = made
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    CHANGES[change](other)
    with pytest.raises(ValueError, match=rf"another retriever(.|\n)*tokenizer: {index.manifest.tokenizer} != \w+"):
        open_searcher(index.uri, SearchOptions(index=index.uri, backbone=str(other)))


def test_an_actor_with_another_tokenizer_is_refused(made: tuple[Path, PassageIndex]) -> None:
    config, manifest = retriever(made[0]), made[1].manifest
    start = EncoderStart(config.model_dump_json(), manifest.weights, "0" * 32, "cpu", RayConfig())
    with pytest.raises(
        ValueError, match=rf"has another tokenizer .*digest {manifest.tokenizer} there, 0+ was expected"
    ):
        start.load()


def test_versions_of_libraries_are_named_beside_another_digest(made: tuple[Path, PassageIndex]) -> None:
    manifest = made[1].manifest
    newer = manifest.model_copy(update={"libraries": manifest.libraries | {"tokenizers": "99"}})
    check_same(manifest, newer, "here")
    with pytest.raises(ValueError, match=r"versions of libraries: .*'tokenizers': '99'.*\n  tokenizer: \w+ != 0"):
        check_same(manifest, newer.model_copy(update={"tokenizer": "0"}), "here")


def test_another_precision_is_refused(made: tuple[Path, PassageIndex], tmp_path: Path) -> None:
    plain = retriever(made[0])
    in_8_bits = plain.model_copy(update={"backbone": plain.backbone.model_copy(update={"dtype": "float8"})})
    index = Index.create(str(tmp_path / "index"), ["honey", "river"], retriever=Retriever(in_8_bits), on_ray=False)
    opened = Index(index.location)
    assert opened.retriever.config.backbone.dtype == "float8"  # type: ignore[union-attr]
    assert len(opened.search("honey", 2)) == 2
    with pytest.raises(ValueError, match=r"backbone\.dtype: float8 != float32"):
        check_same(manifest_of(opened.retriever.encoder), manifest_of(load_encoder(plain, "cpu")), index.location)
