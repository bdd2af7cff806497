"""Valid checkpoints load, and invalid ones are refused with the file and the field."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedConfig

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.schemas.retriever import BackboneConfig
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import BackboneOf, FolderOf, drop, edit_config, edit_tensors, hidden, pad, texts


def load(folder: Path) -> Backbone:
    return load_backbone(folder, device="cpu")


def test_shards_make_no_difference(family: str, backbone: Backbone, tmp_path: Path) -> None:
    sharded = load(write_random_checkpoint(family, tmp_path, shards=3, tokenizer=False))
    batch = pad(texts(7, 12))
    assert torch.equal(hidden(sharded, batch), hidden(backbone, batch))
    assert sharded.weights_digest != backbone.weights_digest


def test_the_fields_of_every_transformers_config_are_harmless_at_their_defaults(copied: Path) -> None:
    """A full dump of a config loads like the published file."""
    expected, own = load(copied), json.loads((copied / "config.json").read_text())
    edit_config(copied, **{name: value for name, value in PreTrainedConfig().to_dict().items() if name not in own})
    batch = pad(texts(7, 12))
    assert torch.equal(hidden(load(copied), batch), hidden(expected, batch))
    edit_config(copied, chunk_size_feed_forward=3)
    with pytest.raises(ValueError, match=r"unknown field 'chunk_size_feed_forward' \(= 3\)"):
        load(copied)


def test_accepted_fields_may_be_unknown(copied: Path) -> None:
    edit_config(copied, query_norm=True, other_norm=True)
    place = BackboneConfig(source=str(copied), accepted_fields=("query_norm",))
    with pytest.raises(ValueError, match=r"unknown field 'other_norm'.*accepted_fields"):
        load_backbone(**place.model_dump(), device="cpu")
    load_backbone(copied, device="cpu", accepted_fields=("query_norm", "other_norm"))


def test_a_missing_config_field_is_an_error(family: str, copied: Path) -> None:
    name = {"llada": "n_layers"}.get(family, "num_hidden_layers")
    edit_config(copied, **{name: ...})
    with pytest.raises(ValueError, match=f"field '{name}' is missing"):
        load(copied)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dream", {"use_sliding_window": True}),
        ("dream", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
        ("dream", {"rope_theta": ...}),
        ("dream", {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}),
        ("qwen2", {"hidden_act": "gelu"}),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("llama3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
        ("llama3", {"attention_bias": True}),
        ("llada", {"block_group_size": 2}),
        ("llada", {"layer_norm_type": "default"}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("modernbert", {"local_rope_theta": ...}),
        ("modernbert", {"tie_word_embeddings": False}),
    ],
)
def test_an_unsupported_config_field_is_an_error(name: str, changes: dict[str, Any], copy_of: FolderOf) -> None:
    folder = copy_of(name)
    edit_config(folder, **changes)
    field = next(iter(changes))
    with pytest.raises(ValueError, match=rf"config\.json: .*'{field}|rotary base 'rope_theta'"):
        load(folder)


def test_an_unknown_family_is_an_error(copied: Path) -> None:
    edit_config(copied, model_type="llada2_moe")
    with pytest.raises(ValueError, match=r"model_type 'llada2_moe' is not supported: use one of Dream, bert, llada"):
        load(copied)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "lm_head.weight"),
        ("llada", "model.transformer.blocks.1.ff_out.weight"),
        ("bert", "bert.encoder.layer.0.attention.self.query.bias"),
    ],
)
def test_a_missing_tensor_is_named_as_the_checkpoint_names_it(name: str, tensor: str, copy_of: FolderOf) -> None:
    folder = copy_of(name)
    edit_tensors(folder, drop(tensor))
    with pytest.raises(ValueError, match=rf"1 tensor\(s\) '{tensor}' missing"):
        load(folder)


def test_an_unexpected_tensor_is_an_error(copied: Path) -> None:
    edit_tensors(copied, lambda tensors: tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(ValueError, match=r"q_norm\.weight' in the weights but not in a model"):
        load(copied)


def test_a_wrong_shape_is_an_error(copy_of: FolderOf) -> None:
    folder = copy_of("dream")
    edit_config(folder, intermediate_size=96)
    with pytest.raises(ValueError, match=r"has shape \[.*128.*\], but the config \[.*96.*\]"):
        load(folder)


def test_old_rotary_buffers_are_harmless(copy_of: FolderOf) -> None:
    folder = copy_of("llama3")
    edit_tensors(folder, lambda tensors: tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load(folder)


def test_the_new_spelling_of_the_rotary_base(copy_of: FolderOf, backbone_of: BackboneOf) -> None:
    folder = copy_of("dream")
    edit_config(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    batch = pad(texts(9))
    assert torch.equal(hidden(load(folder), batch), hidden(backbone_of("dream"), batch))


@torch.inference_mode()
def test_tied_embeddings(copy_of: FolderOf) -> None:
    folder = copy_of("qwen2")
    edit_config(folder, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="weights differ from the embeddings"):
        load(folder)
    edit_tensors(folder, drop("lm_head.weight"))
    output = load(folder).forward(*pad(texts(6)))
    embeddings = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    torch.testing.assert_close(output.logits, output.hidden @ embeddings.T)


def test_the_digest_depends_on_contents_not_on_the_path(copied: Path, backbone: Backbone) -> None:
    assert load(copied).weights_digest == backbone.weights_digest
    edit_config(copied, use_cache="changed")
    assert load(copied).weights_digest != backbone.weights_digest


def test_folders_without_a_checkpoint_are_refused(tmp_path: Path, folder_of: FolderOf) -> None:
    with pytest.raises(ValueError, match="only safetensors are read"):
        load(tmp_path)
    shutil.copy(folder_of("bert") / "model.safetensors", tmp_path)
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be used"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="is an adapter"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_random_checkpoint("dream", tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names model-00002-of-00002\.safetensors, which is missing"):
        load(tmp_path)
