"""A model's Python code runs only if the command names the model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from diffretriever.core.consent import check_trusted, trust_code, trusted_sources
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever, MaskedRetriever
from diffretriever.schemas.search import SearchJob
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.schemas.settings import TRUST_VARIABLE
from diffretriever.search import open_searcher
from diffretriever.serving.opening import open_encoder, open_index, open_preparer
from tests.encoders.library_cases import change_json, encoder_of, published
from tests.search.conftest import fill

MARKER = "it-ran"
_LOAD = "    @classmethod\n    def load(cls, folder):\n        return cls()\n"


@pytest.fixture(autouse=True)
def _no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that what a test's code puts there is taken back, too.
    monkeypatch.setenv(TRUST_VARIABLE, "")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model's folder with an importable module that leaves a marker when it runs."""
    folder = published("bert", tmp_path, "mean", dense=True)
    code = f"from pathlib import Path\nPath({str(tmp_path / MARKER)!r}).touch()\n"
    (folder / "hostile.py").write_text(f"{code}from torch.nn import Identity\n\nclass Same(Identity):\n{_LOAD}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("hostile", None)


def add_module(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": "added", "path": "", "type": "hostile.Same"})
    (folder / "modules.json").write_text(json.dumps(modules))


def map_class(folder: Path) -> None:
    change_json(folder / "config.json", auto_map={"AutoConfig": "hostile.Same", "AutoModel": "hostile.Same"})


def map_tokenizer(folder: Path) -> None:
    names = {"AutoTokenizer": ["hostile.Same", "hostile.Same"]}
    change_json(folder / "tokenizer_config.json", auto_map=names, tokenizer_class="Same")


def trust_in_settings(folder: Path) -> None:
    map_class(folder)
    trust = {"trust_remote_code": True}
    options = ("model_args", "config_args", "tokenizer_args", "model_kwargs", "config_kwargs", "processor_kwargs")
    change_json(folder / "sentence_bert_config.json", **dict.fromkeys(options, trust))


def activation(folder: Path) -> None:
    change_json(folder / "2_Dense" / "config.json", activation_function="hostile.Same")


def kernel_in_settings(folder: Path) -> None:
    change_json(folder / "sentence_bert_config.json", model_args={"attn_implementation": {"text": "a/kernel"}})


def adapter(folder: Path) -> None:
    base = Path(shutil.copytree(folder, folder.parent / "base"))
    map_class(base)
    settings = {"base_model_name_or_path": str(base), "peft_type": "LORA", "auto_mapping": {"base_model_class": "Same"}}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def module_outside(folder: Path) -> None:
    shutil.move(folder / "2_Dense", folder.parent / "2_Dense")
    file = folder / "modules.json"
    file.write_text(file.read_text().replace("2_Dense", "../2_Dense"))


CARRIED: dict[str, tuple[Callable[[Path], None], str | None]] = {
    "class in auto_map": (map_class, "Python code of its own repository"),
    "tokenizer in auto_map": (map_tokenizer, None),
    "trust in the library's settings": (trust_in_settings, "Python code of its own repository"),
    "module in modules.json": (add_module, r"Python code of its own repository \(hostile\.Same\)"),
    "module outside": (module_outside, "is outside of the model's folder"),
    "activation": (activation, None),
    "kernel in the settings": (kernel_in_settings, "a/kernel"),
    "base of an adapter": (adapter, "contains an adapter"),
}
"""What a model's files can name → how to write it, and how it is refused; None: it is passed over."""


@pytest.mark.parametrize("name", CARRIED)
def test_code_named_in_a_models_files_never_runs(name: str, model: Path, tmp_path: Path) -> None:
    write, refusal = CARRIED[name]
    write(model)
    config = LibraryRetriever(backbone=BackboneConfig(source=str(model), dtype="float32"))
    if refusal is None:
        load_encoder(config, "cpu")
    else:
        with pytest.raises(ValueError, match=refusal):
            load_encoder(config, "cpu")
    asking = config.model_copy(update={"remote_code": True})
    trust_code([str(tmp_path / "another"), "some/model"])
    for load in (load_preparer, load_encoder):
        with pytest.raises(ValueError, match=f"--trust-code {model}") as refused:
            load(asking)
        assert f"{TRUST_VARIABLE}={model}" in str(refused.value)
    assert not (tmp_path / MARKER).exists()


def test_code_named_in_a_native_checkpoint_never_runs(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "llada"))
    shutil.copy(model / "hostile.py", folder)
    map_tokenizer(folder)
    change_json(folder / "config.json", auto_map={"AutoModel": "hostile.Same", "AutoConfig": "hostile.Same"})
    config = MaskedRetriever(backbone=BackboneConfig(source=str(folder), dtype="float32"))
    trust_code([str(folder)])
    assert load_encoder(config, "cpu").encode_queries(["river"]).vectors_MH.any()
    assert not (tmp_path / MARKER).exists()


def test_the_codec_of_an_index_is_named_by_its_digest(model: Path) -> None:
    manifest = json.loads(manifest_of(encoder_of(model)).model_dump_json())
    codec = {"name": "product2", "digest": "../" * 9 + "x", "width": 4}
    with pytest.raises(ValueError, match="digest"):
        IndexManifest.model_validate(manifest | {"codec": codec})


def index_of(model: Path, folder: Path, **fields: Any) -> str:
    """Index some texts; the manifest's retriever has `fields` changed."""
    encoder = encoder_of(model, **fields) if trusted_sources() else encoder_of(model)
    made = manifest_of(encoder)
    retriever = made.retriever.model_copy(update=fields)
    PassageIndex.create(str(folder), made.model_copy(update={"retriever": retriever}))
    return fill(encoder, str(folder)).uri


def test_opening_an_index_runs_nothing(model: Path, tmp_path: Path) -> None:
    index = index_of(model, tmp_path / "index", remote_code=True)
    add_module(model)
    trust_code([str(tmp_path), "some/model", str(model / "1_Pooling")])
    config = ServeConfig(index=index)
    for opening in (
        lambda: open_searcher(index),
        lambda: open_encoder(config, open_index(config), "cpu"),
        lambda: open_preparer(config, open_index(config)),
    ):
        with pytest.raises(ValueError, match=f"asks for the Python code of '{model}'.*--trust-code {model}"):
            opening()
    assert not (tmp_path / MARKER).exists()


def test_consent_in_this_command_is_honoured(model: Path, tmp_path: Path) -> None:
    add_module(model)
    trust_code([f"{model.parent}/../{model.parent.name}/{model.name}"])
    index = index_of(model, tmp_path / "index", remote_code=True)
    assert (tmp_path / MARKER).exists()
    assert open_searcher(index).search(["honey"], k=2, modes=["dense"])["dense"][0]
    config = ServeConfig.from_arguments({"index": index, "trust_code": f"some/model,{model}"})
    assert open_encoder(config, open_index(config), "cpu").config == open_index(config).manifest.retriever
    assert "trust" not in (PassageIndex.open(index).manifest.model_dump_json())


def test_jobs_take_consent_from_the_flag_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("trust_code: [some/model]\n")
    with pytest.raises(SystemExit):
        SearchJob.from_command_line(["--index", "x", "--query", "honey", "--config", str(job)])
    assert "unknown key 'trust_code'" in capsys.readouterr().err
    flags = ["--index", "x", "--query", "honey", "--trust-code", "some/model"]
    SearchJob.from_command_line(flags)
    assert trusted_sources() == ("some/model",)


def test_a_folder_in_the_current_directory_is_not_the_trusted_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trust_code(["some/model"])
    check_trusted("some/model", None)
    (tmp_path / "some" / "model").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"--trust-code {tmp_path}/some/model"):
        check_trusted("some/model", None)
    trust_code(["./some/model"])
    check_trusted("some/model", None)


def test_a_revision_is_part_of_the_name() -> None:
    trust_code(["some/model"])
    with pytest.raises(ValueError, match="--trust-code some/model@refs/pr/1`"):
        check_trusted("some/model", "refs/pr/1")
    trust_code(["some/model@refs/pr/1"])
    check_trusted("some/model", "refs/pr/1")


def test_nothing_is_fetched_before_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(source: str, **_: Any) -> str:
        fetched.append(source)
        raise OSError("the hub is not there")

    monkeypatch.setattr("diffretriever.backbones.source.snapshot_download", fetch)
    config = LibraryRetriever(backbone=BackboneConfig(source="some/model"), remote_code=True)
    with pytest.raises(ValueError, match="--trust-code some/model"):
        load_preparer(config)
    assert not fetched
    trust_code(["some/model"])
    with pytest.raises(ValueError, match="the hub is not there"):
        load_preparer(config)
    assert fetched == ["some/model"]
