"""What encoder actors start with: the weights of the index, in the commits and the precision it was begun with."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import ray

from diffretriever.backbones import source
from diffretriever.backbones.source import FetchError
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.pipelines import ray_executor
from diffretriever.pipelines.blocks import EncodeQueries
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.encoder_start import EncoderStart, as_begun, with_commits
from diffretriever.pipelines.ray_executor import RayExecutor
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.installed import installed_encoder
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, LibraryRetriever, MaskedRetriever
from diffretriever.schemas.settings import RayConfig
from tests.encoders.example_package import METHOD, install
from tests.pipelines.corpora import JobMaker, line, write_corpus

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "c" * 40
OTHER = "0" * 64
HUB_ID = "organisation/model"


def described(place: str) -> IndexManifest:
    config = MaskedRetriever(backbone=BackboneConfig(source=place, dtype="float32"))
    return manifest_of(load_encoder(config, "cpu"))


def start_of(manifest: IndexManifest) -> EncoderStart:
    retriever_json = manifest.retriever.model_dump_json()
    return EncoderStart(retriever_json, manifest.weights, manifest.tokenizer, "cpu", RayConfig())


def loaded(start: EncoderStart) -> Encoder:
    stage = EncodeQueries(start)
    stage.setup()
    return stage.encoder


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """A hub with one model in one commit; returns the revisions that it is asked for."""
    asked: list[str | None] = []
    snapshot = tmp_path / "snapshots" / COMMIT
    shutil.copytree(checkpoint, snapshot)

    def fetch(_hub_id: str, *, revision: str | None, **_: Any) -> str:
        asked.append(revision)
        return str(snapshot)

    monkeypatch.setattr(source, "snapshot_download", fetch)
    return asked


def test_other_weights_are_rejected_before_encoding(checkpoint: Path) -> None:
    start = start_of(described(str(checkpoint)))
    assert loaded(start).facts.weights == start.weights
    with pytest.raises(ValueError, match=f"has digest {start.weights} there, {OTHER} was expected"):
        loaded(replace(start, weights=OTHER))


def test_a_branch_is_resolved_to_a_commit_once(hub: list[str | None]) -> None:
    text = MaskedRetriever(backbone=BackboneConfig(source=HUB_ID, dtype="float32")).model_dump_json()
    manifest = IndexManifest.model_validate_json(ray_executor._describe_there._function(text, "cpu")[0])
    assert manifest.retriever.has_weights
    assert hub[0] is None
    assert set(hub[1:]) == {COMMIT}
    hub.clear()
    loaded(start_of(manifest))
    assert set(hub) == {COMMIT}
    unpinned = RETRIEVER_ADAPTER.validate_json(text)
    assert manifest.model_copy(update={"retriever": unpinned}).fingerprint == manifest.fingerprint


def test_trusted_revisions_are_not_pinned(hub: list[str | None]) -> None:
    place = BackboneConfig(source=HUB_ID, revision="main")
    config = LibraryRetriever(backbone=place, remote_code=True)
    assert with_commits(config) == config
    assert not hub
    assert with_commits(config.model_copy(update={"remote_code": False})).backbone.revision == COMMIT


def test_an_index_keeps_its_commit_and_precision() -> None:
    before = BackboneConfig(source="a/b", revision=COMMIT, dtype="bfloat16")
    assert as_begun(BackboneConfig(source="a/b"), before) == before
    elsewhere = BackboneConfig(source="c/d", revision="v1", dtype="float32")
    assert as_begun(elsewhere, before) == elsewhere


def test_an_actor_that_cannot_fetch_the_model_fails_to_start(checkpoint: Path) -> None:
    away = FetchError("the hub is away")
    start = start_of(described(str(checkpoint)))
    with patch.object(EncoderStart, "load", side_effect=away), pytest.raises(FetchError):
        EncodeQueries(start).setup()


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_a_job_fails_with_the_actors_message(tmp_path: Path, checkpoint: Path, make_job: JobMaker) -> None:
    corpus = write_corpus(tmp_path / "corpus", [line(i) for i in range(3)])
    changed = described(str(checkpoint)).model_copy(update={"weights": OTHER})
    with (
        patch.object(RayExecutor, "manifest", return_value=changed),
        pytest.raises(ValueError, match=r"^machine .* has other weights .*what was committed stays$"),
    ):
        encode_collection(make_job(corpus))


@pytest.mark.usefixtures("cluster")
def test_an_actor_loads_the_encoder_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install(tmp_path / "packages")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "random_indexing", raising=False)
    installed_encoder.cache_clear()
    config = RETRIEVER_ADAPTER.validate_python({"method": METHOD, "size": 32})
    encoder = load_encoder(config, "cpu")  # type: ignore[arg-type] # it has weights

    def encode(start: EncoderStart) -> pa.Table:
        return start.load().encode_queries(["river"]).to_arrow()

    paths = ":".join(map(str, (folder, ROOT / "platform", ROOT)))
    there = ray.remote(encode).options(runtime_env={"env_vars": {"PYTHONPATH": paths}})
    found = ray.get(there.remote(start_of(manifest_of(encoder))))
    assert found.equals(encoder.encode_queries(["river"]).to_arrow())
    installed_encoder.cache_clear()
