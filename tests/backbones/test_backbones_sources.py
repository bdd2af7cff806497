"""Sources of checkpoints, devices, dtypes and attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from diffretriever.backbones import device, source
from diffretriever.backbones.loader import load_backbone
from diffretriever.schemas.retriever import BackboneConfig
from tests.backbones.helpers import FolderOf


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_backbone(tmp_path / "nothing")
    with pytest.raises(ValueError, match="neither a folder nor a hub id"):
        load_backbone("a/b/c")


def test_a_hub_id_is_fetched_without_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fetch = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(source, "snapshot_download", fetch)
    for resolve in (source.resolve_source, source.resolve_adapter):
        resolve("org/model", weights=False)
        assert not any("safetensors" in pattern for pattern in fetch.call_args.kwargs["allow_patterns"])
        assert resolve("org/model", "abc") == tmp_path
        assert (fetch.call_args.args, fetch.call_args.kwargs["revision"]) == (("org/model",), "abc")
        assert not any(pattern.endswith(("py", "bin", "*")) for pattern in fetch.call_args.kwargs["allow_patterns"])
    # Of an adapter not `model.safetensors`: a training folder has the frozen backbone too.
    files = {"config.json", "*_config.json", "training.json", "adapter_model.safetensors", "slots.safetensors"}
    assert set(fetch.call_args.kwargs["allow_patterns"]) == files


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "snapshot_download", Mock(side_effect=LocalEntryNotFoundError("no connection")))
    with pytest.raises(ValueError, match="folder does not exist, and the hub has no such model or is unreachable"):
        load_backbone("Dream-org/Dream")


def test_a_revision_needs_the_hub(folder_of: FolderOf) -> None:
    for local in ("minilm", folder_of("dream")):
        with pytest.raises(ValueError, match="revision 'main' has no meaning"):
            load_backbone(local, revision="main")


def test_revisions_are_pinned_to_commits(monkeypatch: pytest.MonkeyPatch, folder_of: FolderOf, tmp_path: Path) -> None:
    commits = {None: "a" * 40, "v1": "b" * 40, "b" * 40: "b" * 40}

    def fetch(_hub_id: str, *, revision: str | None, **_: Any) -> str:
        return str(tmp_path / "snapshots" / commits[revision])

    monkeypatch.setattr(source, "snapshot_download", fetch)
    place = BackboneConfig(source="org/model", adapter="org/adapter", adapter_revision="v1")
    pinned = source.pinned(place)
    assert (pinned.revision, pinned.adapter_revision) == ("a" * 40, "b" * 40)
    assert source.pinned(BackboneConfig(source="org/model", revision="b" * 40)).revision == "b" * 40
    for local in (BackboneConfig(source="minilm", adapter="minilm"), BackboneConfig(source=str(folder_of("dream")))):
        assert source.pinned(local) == local


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.resolve_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device.resolve_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ValueError, match=r"sees 1 GPU"):
        device.resolve_device("cuda:1")
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        device.resolve_device("tpu")


def test_fp32_products_are_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("high")
    device.resolve_device("cpu")
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    device.resolve_device("cuda")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(ValueError, match="NVIDIA_TF32_OVERRIDE=1 makes the GPU round"):
        device.resolve_device("cuda")
    device.resolve_device("cpu")


def test_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert device.resolve_dtype("float16", cpu) == torch.float16
    assert device.resolve_dtype("auto", gpu) == torch.bfloat16
    assert device.resolve_dtype("auto", cpu) in {torch.bfloat16, torch.float32}
    for has_bfloat16, chosen in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(device, "computes_bfloat16", lambda has=has_bfloat16: has)
        assert device.resolve_dtype("auto", cpu) == chosen
    with pytest.raises(ValueError, match="unknown dtype 'int4'"):
        device.resolve_dtype("int4", cpu)


def test_attention_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert device.resolve_attention("auto", cpu, torch.bfloat16, packs=True) == "packed"
    assert device.resolve_attention("auto", cpu, torch.float32, packs=True) == "sdpa"
    assert device.resolve_attention("packed", cpu, torch.float32, packs=True) == "packed"
    with pytest.raises(ValueError, match="does not support attention 'packed'"):
        device.resolve_attention("packed", cpu, torch.bfloat16, packs=False)
    with pytest.raises(ValueError, match="unknown attention 'fast'"):
        device.resolve_attention("fast", cpu, torch.bfloat16, packs=True)

    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    for capability, dtype, packs, expected in (
        ((9, 0), torch.bfloat16, True, "packed"),
        ((8, 0), torch.float16, True, "packed"),
        ((7, 5), torch.float16, True, "sdpa"),
        ((9, 0), torch.float32, True, "sdpa"),
        ((9, 0), torch.bfloat16, False, "sdpa"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, actual=capability: actual)
        assert device.resolve_attention("auto", gpu, dtype, packs=packs) == expected
