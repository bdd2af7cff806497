"""Adapters in the authors' format: the retriever must fit their training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from diffretriever.backbones import source
from diffretriever.backbones.loader import load_vocabulary
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.preparer import SYSTEM
from diffretriever.index.manifest import manifest_of
from diffretriever.presets import load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import (
    RETRIEVER_ADAPTER,
    BackboneConfig,
    ContentWordsConfig,
    MaskedRetriever,
    NeuralRetriever,
    PooledRetriever,
    PromptConfig,
    TextConfig,
)
from diffretriever.testing.adapters import write_random_adapter
from tests.encoders.encoder_cases import FolderOf
from tests.encoders.test_sequences import ASKS, FORMS


def released_config(folder: Path) -> dict[str, Any]:
    """The file as the authors' training writes it for K = (2, 3), its prompts spelled out."""
    vocabulary = load_vocabulary(folder)
    prompts = {}
    for side in ("query", "passage"):
        before, after = f'{side.capitalize()}: "', f'". {ASKS[4][0].format(side=side)}'
        for part, form in zip(("prefix", "suffix"), FORMS["llada"], strict=True):
            text = form.format(system=SYSTEM, before=before, after=after, answer='The words are: "')
            prompts[f"{side}_{part}_ids"] = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    return {
        "model_type": "llada",
        "mask_token_id": vocabulary.mask_token_id,
        "hidden_size": 32,
        "max_length": 156,
        "n_gen_tokens": 3,
        "n_gen_q_tokens": 2,
        "n_gen_p_tokens": 3,
        "temperature": 0.01,
        "num_denoise_steps": 1,
        "normalize": True,
        "n_tail": 3,
        "use_k_adapter": False,
        "use_k_pre_encoder": False,
        **prompts,
    }


@pytest.fixture
def config(folder_of: FolderOf, tmp_path: Path) -> MaskedRetriever:
    backbone, adapter = folder_of("llada"), tmp_path / "adapter"
    write_random_adapter(backbone, adapter)
    (adapter / "retriever_config.json").write_text(json.dumps(released_config(backbone)))
    place = BackboneConfig(source=str(backbone), dtype="float32", adapter=str(adapter))
    return MaskedRetriever(backbone=place, budget=Budget(2, 3), prompt=PromptConfig(colon=True))


def edit(config: NeuralRetriever, name: str = "retriever_config.json", **changes: Any) -> None:
    assert config.backbone.adapter is not None
    file = Path(config.backbone.adapter) / "retriever_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    file.rename(file.with_name(name))


def refused(config: NeuralRetriever, message: str) -> None:
    for load in (load_preparer, lambda config: load_encoder(config, "cpu")):
        with pytest.raises(ValueError, match=message):
            load(config)


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        (PromptConfig(), r"query_suffix_ids .*\(here .*are .*passage_suffix_ids"),
        (PromptConfig(variant="three"), r"query_suffix_ids .*a few words.*\(here .*three words"),
        (PromptConfig(variant="bare"), "query_prefix_ids .*Query.*query_suffix_ids"),
    ],
)
def test_another_prompt_is_refused(prompt: PromptConfig, part: str, config: MaskedRetriever) -> None:
    message = rf"retriever_config\.json: the adapter was trained with {part}.*set the retriever's prompt"
    refused(config.model_copy(update={"prompt": prompt}), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": 7}, "the adapter was trained with mask_token_id 7"),
        ({"n_tail": 1}, r"the adapter was trained with n_tail 1 \(here 3\): set .* tail_length"),
        ({"passage_prefix_ids": [1, 2, 3]}, r"the adapter was trained with passage_prefix_ids '[^']*' \(here '"),
        ({"normalize": False}, "normalize is false"),
        ({"use_k_adapter": True}, "use_k_adapter is true: .* not supported"),
    ],
)
def test_unsupported_training_is_refused(changes: dict[str, Any], message: str, config: MaskedRetriever) -> None:
    edit(config, **changes)
    refused(config, f"retriever_config.json: {message}")


def test_another_length_than_in_training_is_reported_once(
    config: MaskedRetriever, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        fitting = load_preparer(config.model_copy(update={"text": TextConfig(max_passage_tokens=156)}))
        assert not fitting.notices
        load_preparer(config)
    (message,) = caplog.messages
    assert "retriever_config.json: the adapter was trained with text.max_passage_tokens 156 (here 512)" in message


@pytest.mark.parametrize(
    "preset", [f"diffretriever-{name}-tuned" for name in ("dream", "dream-single", "llada", "llada-single")]
)
def test_presets_of_the_released_adapters_run_as_they_were_trained(preset: str) -> None:
    retriever = load_retriever(preset)
    assert isinstance(retriever, MaskedRetriever)
    assert str(retriever.backbone.adapter).startswith("ielabgroup/")
    assert retriever.prompt.colon
    assert retriever.content_words == ContentWordsConfig(subwords=True)
    assert retriever.text == TextConfig(max_query_tokens=32, max_passage_tokens=156, length_semantics="text")


@pytest.mark.parametrize(
    ("name", "trained", "fields"),
    [
        ("retriever_config.json", "masked", {"method": "pooled"}),
        ("diffembed_config.json", "pooled", {"method": "masked", "budget": "q2p3"}),
        ("ar_retriever_config.json", "generated", {"method": "pooled"}),
    ],
)
def test_another_method_is_refused(name: str, trained: str, fields: dict[str, Any], config: MaskedRetriever) -> None:
    edit(config, name)
    other = RETRIEVER_ADAPTER.validate_python({**fields, "backbone": config.backbone})
    refused(other, rf"{name}: .*trained for method '{trained}', but the retriever has method '{fields['method']}'")  # type: ignore[arg-type]
    (Path(str(config.backbone.adapter)) / name).unlink()
    load_preparer(PooledRetriever(backbone=config.backbone))


def test_preparing_fetches_no_weights(config: MaskedRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fetch(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return str(config.backbone.adapter)

    monkeypatch.setattr(source, "snapshot_download", fetch)
    place = config.backbone.model_copy(update={"adapter": "someone/adapter", "adapter_revision": "abc"})
    hub = config.model_copy(update={"backbone": place})
    load_preparer(hub)
    assert (asked["hub_id"], asked["revision"]) == ("someone/adapter", "abc")
    assert not any("safetensors" in pattern for pattern in asked["allow_patterns"])
    encoder = load_encoder(hub, "cpu")
    assert encoder.facts.weights == load_encoder(config, "cpu").facts.weights
    assert "adapter_model.safetensors" in asked["allow_patterns"]


def with_place(config: MaskedRetriever, **changes: Any) -> MaskedRetriever:
    return config.model_copy(update={"backbone": config.backbone.model_copy(update=changes)})


def test_the_fingerprint_covers_the_adapter(config: MaskedRetriever, tmp_path: Path) -> None:
    moved = shutil.copytree(str(config.backbone.adapter), tmp_path / "moved")
    other = write_random_adapter(config.backbone.source, tmp_path / "other", seed=1)
    places: list[dict[str, Any]] = [{}, {"adapter": str(moved)}, {"adapter": None}, {"adapter": str(other)}]
    found = [manifest_of(load_encoder(with_place(config, **place), "cpu")).fingerprint for place in places]
    assert found[0] == found[1]
    assert len(set(found)) == 3
