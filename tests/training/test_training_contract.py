"""What holds for every method on every family: a step changes the adapter alone, and the loss goes down."""

from __future__ import annotations

import pytest
import torch

from diffretriever.training.adapters import expected_parameters, trainable_parameters
from tests.training.trainer_cases import CASES, FolderOf, config_of, quick_recipe, session_of


@pytest.mark.parametrize("case", CASES)
def test_a_few_steps(case: str, folder_of: FolderOf) -> None:
    recipe = quick_recipe(max_steps=10, queries_per_device=8, lora_dropout=0.0)
    # One batch, seen ten times.
    session = session_of(config_of(case, folder_of), recipe, size=8)
    backbone = session.encoder.backbone
    assert session.manifest.trainable == expected_parameters(backbone, session.lora)
    before = {name: parameter.detach().clone() for name, parameter in backbone.model.named_parameters()}
    metrics = list(session.trainer.run())
    assert [m.step for m in metrics] == list(range(1, 11))
    for name, parameter in backbone.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (".lora_" not in name), name
    assert session.manifest.trainable == sum(p.numel() for p in trainable_parameters(backbone).values())
    first, last = (sum(m.loss for m in part) / 3 for part in (metrics[:3], metrics[-3:]))
    assert last < 0.9 * first, [m.loss for m in metrics]
    assert (metrics[0].sparse_loss > 0) == ("sparse" in session.encoder.config.modes)
    assert all(m.tokens_per_second > 0 and m.gradient_norm > 0 and m.utilisation > 0 for m in metrics)
