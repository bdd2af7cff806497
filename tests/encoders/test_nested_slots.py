"""Vectors of a large budget begin with those of every smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from diffretriever.backbones.slot_layers import SLOTS_FILE
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.testing.adapters import write_random_adapter
from tests.encoders.encoder_cases import PARTS, TEXTS, FolderOf, Make

NESTED: dict[str, dict[str, Any]] = {
    "dream": {"prompt": {"variant": "few"}, "tail_length": 0},
    "bert": {"prompt": {"variant": "bare"}, "slot_positions": "spread"},
}


@pytest.mark.parametrize("family", NESTED)
def test_smaller_budgets_are_prefixes(family: str, make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked(family, nested_slots=True, budget=Budget(5, 5), **NESTED[family])
    whole = encoder.encode_queries(TEXTS)
    for budget in (1, 2, 4):
        cut = encoder.encode_queries(TEXTS, [budget] * len(TEXTS))
        for row in range(len(TEXTS)):
            first = whole.offsets[row]
            found_KH = cut.vectors_MH[cut.offsets[row] : cut.offsets[row + 1]].astype(np.float32)
            expected_KH = whole.vectors_MH[first : first + budget].astype(np.float32)
            assert len(found_KH) == budget
            np.testing.assert_allclose(found_KH, expected_KH, atol=1e-3)
    plain = make_masked(family, budget=Budget(5, 5), **NESTED[family])
    (five, two) = (plain.encode_queries(TEXTS[:1], [k]).vectors_MH.astype(np.float32) for k in (5, 2))
    assert np.abs(five[:2] - two).max() > 1e-2, "without nesting they are not"


@pytest.mark.parametrize("readout", [{}, PARTS], ids=["states", "parts"])
@pytest.mark.parametrize("family", NESTED)
def test_one_pass_gives_all_budgets(family: str, readout: dict[str, str], make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked(family, nested_slots=True, budget=Budget(5, 5), **NESTED[family], **readout)
    encoder.tokens_per_batch = 64
    prepared = encoder.preparer.prepare_queries(TEXTS)
    budgets = (2, 5, 1)
    for budget, cut in zip(budgets, encoder.submit(prepared, budgets).result().parts, strict=True):
        apart = encoder.encode_queries(TEXTS, [budget] * len(TEXTS))
        for name in ("offsets", "impact_ids", "impact_offsets", "slot_tokens", "n_tokens"):
            np.testing.assert_array_equal(getattr(cut, name), getattr(apart, name))
        for name in ("vectors_MH", "impact_weights"):
            actual, expected = (np.float32(getattr(each, name)) for each in (cut, apart))
            np.testing.assert_allclose(actual, expected, atol=2e-3)
    assert [len(cut) for cut in encoder.submit([], budgets).result().parts] == [0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": {"variant": "paper"}}, "set prompt.variant to few"),
        ({"prompt": {"variant": "few"}, "tail_length": 3}, "set tail_length to 0"),
        ({"prompt": {"variant": "few"}, "steps": 2}, "set steps to 1"),
        ({"adapter_on": "slots", "nested_slots": False}, "adapter_on: slots needs slots"),
    ],
)
def test_what_cannot_be_nested(fields: dict[str, object], message: str) -> None:
    fields = {"tail_length": 0, "nested_slots": True, "backbone": {"source": "minilm"}} | fields
    with pytest.raises(ValidationError, match=message):
        MaskedRetriever.model_validate(fields)


def test_an_adapter_with_fewer_slots(folder_of: FolderOf, tmp_path_factory: pytest.TempPathFactory) -> None:
    adapter = tmp_path_factory.mktemp("adapters") / "bert"
    write_random_adapter(folder_of("bert"), adapter)
    hidden_size = 32
    save_file({"embeddings": torch.zeros(4, hidden_size)}, adapter / SLOTS_FILE)
    place = {"source": str(folder_of("bert")), "adapter": str(adapter), "dtype": "float32"}
    config = MaskedRetriever.model_validate({"backbone": place, "budget": "q2p5"})
    with pytest.raises(ValueError, match=r"up to 5 slots, but the adapter .* vectors for 4: set a smaller budget"):
        MaskedEncoder.load(config, "cpu")
    encoder = MaskedEncoder.load(config.model_copy(update={"budget": Budget(2, 4)}), "cpu")
    assert len(encoder.encode_passages([""], ["river"]).vectors_MH) == 4
    with pytest.raises(ValueError, match="a query's budget must be at most 4, for which the adapter was trained"):
        encoder.encode_queries(["river"], [5])
