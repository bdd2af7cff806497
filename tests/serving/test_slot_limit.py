"""An adapter with embeddings for few slots limits the budget of requests."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from diffretriever.backbones.slot_layers import SLOTS_FILE
from diffretriever.encoders import load_encoder
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.serving.serving_cases import served, small_index


def test_more_slots_than_the_adapter_has_are_rejected(tmp_path: Path) -> None:
    backbone, adapter = write_random_checkpoint("llada", tmp_path / "llada"), tmp_path / "adapter"
    write_random_adapter(backbone, adapter)
    backbone_config = {"source": str(backbone), "adapter": str(adapter), "dtype": "float32"}
    config = MaskedRetriever.model_validate({"backbone": backbone_config, "budget": "q2p2"})
    hidden_size = load_encoder(config, "cpu").facts.hidden_size
    save_file({"embeddings": torch.zeros(3, hidden_size)}, adapter / SLOTS_FILE)
    small_index(load_encoder(config, "cpu"), str(tmp_path / "index"))
    with served(str(tmp_path / "index")) as client:
        assert client.get("/index").json()["limits"]["max_budget"] == 3
        response = client.post("/search", json={"query": "heat in a slab", "budget": 3}).raise_for_status().json()
        assert response["results"][0]["budget"]["slots"] == 3
        refused = client.post("/search", json={"query": "heat in a slab", "budget": 4})
        assert (refused.status_code, refused.json()["field"]) == (422, "budget")
        assert refused.json()["detail"] == "4 slots are too many"
