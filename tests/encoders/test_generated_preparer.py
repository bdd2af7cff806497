"""The sequence of PromptReps written out by hand, and its limits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders import preparer as prepared
from diffretriever.encoders.preparer import SYSTEM, Preparer
from diffretriever.schemas.retriever import BackboneConfig, GeneratedRetriever, PromptConfig, TextConfig
from tests.encoders.encoder_cases import HUGE, FolderOf, assert_close

FAMILIES = ("qwen2", "llama3")
FORMS = {
    "qwen2": (
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{before}",
        "{after}<|im_end|>\n<|im_start|>assistant\n{answer}",
    ),
    "llama3": (
        (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n{before}"
        ),
        "{after}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{answer}",
    ),
}
ASKS = {
    1: ("Use one word to represent the {side} in a retrieval task. Make sure your word is in lowercase.", "word is"),
    4: (
        "Use a few words to represent the {side} in a retrieval task. Make sure your words are in lowercase.",
        "words are",
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def config_of(folder: Path, **fields: object) -> GeneratedRetriever:
    place = BackboneConfig(source=str(folder), dtype="float32")
    return GeneratedRetriever.model_validate({"backbone": place, **fields})


@pytest.mark.parametrize(("side", "most"), [("query", 1), ("passage", 4)])
def test_the_sequence(family: str, side: str, most: int, folder_of: FolderOf) -> None:
    preparer = load_preparer(config_of(folder_of(family), max_tokens=most))
    ask, noun = ASKS[most]
    left, right = (
        part.format(system=SYSTEM, before=f'{side.capitalize()}: "', after=f'". {ask}', answer=f'The {noun} "')
        for part in FORMS[family]
    )
    parts = [
        preparer.vocabulary.tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in (left, "honey and river water", right.format(side=side))
    ]
    (found,) = prepare(preparer, side, ["honey and river water"])
    assert found.input_ids.tolist() == [token for part in parts for token in part]
    assert (found.slots, found.n_tokens, found.prefix_tokens) == (most, len(parts[1]), len(parts[0]))
    assert preparer.vocabulary.tokenizer.decode(found.input_ids[-1:]) == ' "'
    words = [preparer.vocabulary.tokenizer.convert_tokens_to_ids(word) for word in ("honey", "river", "water")]
    assert found.content_ids.tolist() == sorted(words)


@pytest.mark.parametrize("most", [1, 7])
def test_room_is_kept_for_generated_tokens(most: int, folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copied(folder_of("qwen2"), tmp_path, max_position_embeddings=120)
    preparer = load_preparer(config_of(folder, max_tokens=most))
    (found,) = prepare(preparer, "query", [HUGE])
    assert len(found.input_ids) == 120 - (most - 1)
    assert found.input_ids[-1] == prepare(preparer, "query", ["river"])[0].input_ids[-1]
    encoder = load_encoder(config_of(folder, max_tokens=most, stop="cap"), "cpu")
    assert encoder.encode([found, *prepare(preparer, "query", ["river"])]).offsets.tolist() == [0, most, 2 * most]


def test_no_room_for_a_text(folder_of: FolderOf) -> None:
    short = TextConfig(max_query_tokens=2, length_semantics="total")
    with pytest.raises(ValueError, match=r"19 follow .*generated tokens.*max_tokens"):
        prepare(load_preparer(config_of(folder_of("qwen2"), text=short, max_tokens=20)), "query", ["river"])


def test_the_bare_variant(family: str, folder_of: FolderOf) -> None:
    config = config_of(folder_of(family), prompt=PromptConfig(variant="bare"), max_tokens=2, stop="cap")
    encoder = load_encoder(config, "cpu")
    tokenizer = encoder.preparer.vocabulary.tokenizer
    river, nothing = prepare(encoder.preparer, "query", ["river", ""])
    opening = tokenizer.bos_token or ""
    assert tokenizer.decode(river.input_ids) == f"{opening}river"
    assert river.prefix_tokens == len(river.input_ids) - 1
    assert (len(nothing.input_ids), nothing.n_tokens, nothing.prefix_tokens) == (1, 0, 0)
    both = encoder.encode([river, nothing])
    assert both.offsets.tolist() == [0, 2, 4]
    assert_close(both.take(np.array([1])), encoder.encode([nothing]))


def copied(folder: Path, where: Path, **changes: object) -> Path:
    copy = Path(shutil.copytree(folder, where / "copy"))
    config = json.loads((copy / "config.json").read_text()) | changes
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def prepare(preparer: Preparer, side: str, texts: list[str]) -> list[prepared.PreparedText]:
    return preparer.prepare_queries(texts) if side == "query" else preparer.prepare_passages([""] * len(texts), texts)
