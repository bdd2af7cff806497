"""Encoders of installed packages in jobs, workers and indexes."""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest
import yaml

import diffretriever as dr
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever, system_name
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.installed import installed_encoder
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER
from tests.encoders.example_package import METHOD, install

TEXTS = ["prune roses in winter", "the server has no memory", "tomatoes like the sun"]


@pytest.fixture(autouse=True)
def _forget() -> None:
    installed_encoder.cache_clear()


@pytest.fixture
def uninstalled(own_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the package, and restore the path after the test."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(own_package)])
    monkeypatch.delitem(sys.modules, "random_indexing", raising=False)
    installed_encoder.cache_clear()


def encoder_of(**fields: Any) -> Encoder:
    config = RETRIEVER_ADAPTER.validate_python({"method": METHOD, **fields})
    return load_encoder(config, "cpu")  # type: ignore[arg-type] # it has weights


@pytest.fixture
def index(own_package: Path, tmp_path: Path) -> dr.Index:
    return dr.Index.create(tmp_path / "index", TEXTS, retriever=METHOD)


@pytest.mark.usefixtures("own_package")
def test_an_installed_method_works_by_name_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"method": METHOD, "size": 64, "backbone": {"source": "minilm"}})
    )
    config = load_retriever(str(tmp_path / "mine.yaml"))
    assert type(config) is import_module("random_indexing").RandomIndexing
    assert config.model_dump()["size"] == 64
    assert dr.Retriever(METHOD).encode_queries("prune roses").vectors_MH.shape == (1, 256)
    assert dr.Retriever(config).encode_queries(TEXTS).vectors_MH.shape == (3, 64)
    assert load_retriever(METHOD, backbone="elsewhere").backbone.source == "elsewhere"  # type: ignore[union-attr]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"method": METHOD, "sise": 64}))
    with pytest.raises(ValueError, match=r"unknown key 'sise' in RandomIndexing\. Did you mean 'size'"):
        load_retriever(str(tmp_path / "mine.yaml"))


def test_its_indexes_are_searched(index: dr.Index) -> None:
    actual = dr.Index(index.location).search("sun on tomatoes", k=2)
    assert (actual[0].text, actual.mode) == (TEXTS[2], "dense")
    assert index.add(["more"], name="others").encoded == 1
    assert repr(index).endswith(f"4 passages, {METHOD}, version {index.version})")


def test_the_fingerprint_covers_settings_and_weights(index: dr.Index) -> None:
    made = PassageIndex.open(index.location).manifest
    assert IndexManifest.model_validate_json(made.model_dump_json()) == made
    assert made.libraries["diffretriever-random-indexing"] == "1.0"
    assert made.fingerprint == manifest_of(encoder_of()).fingerprint
    assert made.fingerprint != manifest_of(encoder_of(seed=1)).fingerprint
    other = encoder_of()
    other.facts = type(other.facts)(**{**{n: getattr(other.facts, n) for n in other.facts.__slots__}, "weights": "2"})
    assert made.fingerprint != manifest_of(other).fingerprint
    with pytest.raises(ValueError, match=r"was made by another retriever.*\n.*retriever\.size: 256 != 64"):
        dr.Index.create(index.location, ["x"], retriever=dr.Retriever(encoder_of(size=64).config))
    assert system_name(made) == "diffretriever-random-indexing-static-minilm"


def test_without_the_package_one_line_names_it(index: dr.Index, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("uninstalled")
    missing = (
        f"the retriever '{METHOD}' needs the package diffretriever-random-indexing, which is not installed here: "
        "install it, if you trust it"
    )
    with pytest.raises(ValueError, match="not installed here") as refused:
        dr.Index(index.location)
    assert str(refused.value) == f"{index.location}: {missing}"
    with pytest.raises(ValueError, match="not installed here") as refused:
        dr.Retriever(METHOD)
    assert str(refused.value) == missing


@pytest.mark.usefixtures("uninstalled")
def test_a_broken_package_is_named(tmp_path: Path) -> None:
    folder = install(tmp_path / "broken", module=False)
    sys.path.insert(0, str(folder))
    with pytest.raises(ValueError, match="cannot be imported: No module named 'random_indexing'"):
        load_retriever(METHOD)
    invalidate_caches()
    (folder / "random_indexing.py").write_text("class RandomIndexingEncoder: pass\n")
    with pytest.raises(ValueError, match=f"needs a config_class with method: Literal\\['{METHOD}'\\]"):
        load_retriever(METHOD)


@pytest.mark.parametrize(
    "method",
    ["hostile:Hostile", "./hostile:Hostile", "hostile.py:Hostile", "json:"],
)
def test_opening_an_index_never_imports_the_method_it_names(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if Python could import it from the current directory or the path."""
    (tmp_path / "hostile.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    values = {"created": "today", "retriever": {"method": method, "backbone": {"source": str(tmp_path)}}}
    with pytest.raises(ValueError, match=r"not installed here|does not match any of the expected tags"):
        IndexManifest.model_validate(values)
    assert not (tmp_path / "ran").exists()
    assert "hostile" not in sys.modules
