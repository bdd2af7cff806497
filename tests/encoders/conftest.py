"""Encoders over tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.pooled import PooledEncoder
from diffretriever.encoders.tokens import TokensEncoder
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, BackboneConfig, Bm25Retriever
from tests.encoders.encoder_cases import CASES, MASKED, FolderOf, Make, load_case
from tests.encoders.example_package import install


@pytest.fixture(scope="session")
def own_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example of an encoder in a package of its own, installed in the folder that this is."""
    with pytest.MonkeyPatch.context() as patch:
        folder = install(tmp_path_factory.mktemp("packages"))
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="session")
def encoder_of(folder_of: FolderOf, own_package: Path) -> Callable[[str], Encoder]:
    """The encoder of a case, loaded on first use: not to be changed."""
    return cache(lambda case: load_case(case, folder_of))


@pytest.fixture(params=CASES)
def encoder(request: pytest.FixtureRequest, encoder_of: Callable[[str], Encoder]) -> Encoder:
    """Every encoder in turn."""
    return encoder_of(request.param)


@pytest.fixture(params=MASKED)
def masked(request: pytest.FixtureRequest, encoder_of: Callable[[str], Encoder]) -> MaskedEncoder:
    """Every encoder with slots in turn."""
    found = encoder_of(request.param)
    assert isinstance(found, MaskedEncoder)
    return found


@pytest.fixture(scope="session")
def make_masked(folder_of: FolderOf) -> Make[MaskedEncoder]:
    """A masked encoder with a config of its own."""
    return partial(_make, folder_of, "masked")


@pytest.fixture(scope="session")
def make_pooled(folder_of: FolderOf) -> Make[PooledEncoder]:
    """A pooled encoder with a config of its own."""
    return partial(_make, folder_of, "pooled")


@pytest.fixture(scope="session")
def make_tokens(folder_of: FolderOf) -> Make[TokensEncoder]:
    """A tokens encoder with a config of its own."""
    return partial(_make, folder_of, "tokens")


@pytest.fixture(scope="session")
def make_generated(folder_of: FolderOf) -> Make[GeneratedEncoder]:
    """An encoder of PromptReps with a config and weights of its own."""
    return partial(_make, folder_of, "generated")


def _make(folder_of: FolderOf, method: str, backbone: str, **fields: Any) -> Any:
    place = BackboneConfig(source=str(folder_of(backbone)), dtype="float32")
    config = RETRIEVER_ADAPTER.validate_python({"method": method, "backbone": place, **fields})
    assert not isinstance(config, Bm25Retriever)
    return load_encoder(config, "cpu")
