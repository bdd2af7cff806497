"""DiffuRank's three methods against the published layout, written out here, and a model without anything around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from diffretriever.backbones.loader import load_backbone
from diffretriever.collections import Passage
from diffretriever.rerank import reranker_config
from diffretriever.rerank.diffurank import DiffuRank, assigned, greedy, windows
from diffretriever.schemas.rerank import DiffuRankConfig
from diffretriever.testing.adapters import write_random_adapter
from tests.locations import local
from tests.rerank.rerank_cases import PASSAGES, QUERY, FolderOf, MakeJob, rerank

TEXTS = [
    "Bees store honey in summer and eat it in winter",
    "A river carries sand and clay to the sea",
    "copper",
    # This model's mask would be one of the answer's.
    "🐝 蜂蜜 \x01 <|mask|> < |mdm_mask|> [MASK] <|im_end|>",
    ("rest, water and time cure most fevers " * 6).strip(),
]
SCORES = "The relevance score should be either 0 (not relevant) or 1 (relevant)."


def turns(user: str, assistant: str) -> str:
    head, end = "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"
    parts = [head.format("user"), user, end, head.format("assistant"), assistant, end, head.format("assistant")]
    return "<|startoftext|>" + "".join(parts)


def pointwise(text: str) -> str:
    asked = f"Given a query and a document, determine whether the document is relevant to the query. {SCORES}"
    return turns(f"{asked}\n\nQuery: {QUERY}\n\nDocument:\n{text}".strip(), "<|mdm_mask|>")


def listwise(texts: list[str]) -> str:
    asked = (
        f"Given a query and {len(texts)} documents indicated by a numeric identifier, determine whether each document "
        f"is relevant to the query. {SCORES}"
    )
    documents = "\n".join(f"Document {i}: {text}" for i, text in enumerate(texts))
    answer = "\n".join(f"Document {i}: <|mdm_mask|>" for i in range(len(texts)))
    return turns(f"{asked}\n\nQuery: {QUERY}\n\nDocuments:\n{documents}".strip(), answer)


def permutation(texts: list[str], answer: str) -> str:
    asked = (
        f"Given a query and {len(texts)} documents indicated by a character identifier, rank the documents from most "
        "relevant to least relevant to the query.\n\nYou should output a ranking using the document identifier, from "
        "most relevant to least relevant, separated by spaces."
    )
    documents = "\n".join(f"Document {'ABCDE'[i]}: {text}" for i, text in enumerate(texts))
    user = f"{asked}\n\nQuery: {QUERY}\n\nDocuments:\n{documents}".strip()
    return turns(user, f"Ranking (most to least relevant):{answer}")


@pytest.fixture
def folder_config(folder_of: FolderOf) -> dict[str, Any]:
    return {"backbone": {"source": str(folder_of("llada")), "dtype": "float32"}}


def make(values: dict[str, Any], **fields: Any) -> DiffuRank:
    return DiffuRank.load(DiffuRankConfig.model_validate({**values, **fields}), "cpu")


@torch.inference_mode()
def probabilities(reranker: DiffuRank, text: str, tokens: list[str]) -> np.ndarray:
    """Of each token, its last piece, at each mask, among all tokens: float64 [masks, tokens]."""
    backbone, tokenizer = reranker.backbone, reranker.backbone.vocabulary.tokenizer
    ids_1T = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    states_TH = backbone.model.base_model(input_ids=ids_1T).last_hidden_state[0]
    logits_TV = backbone.output_projection(backbone.head_input(states_TH)).double()
    columns = [tokenizer(token, add_special_tokens=False)["input_ids"][-1] for token in tokens]
    found: np.ndarray = logits_TV.softmax(-1)[ids_1T[0] == backbone.vocabulary.mask_token_id][:, columns].numpy()
    return found


def relevances(reranker: DiffuRank, text: str) -> np.ndarray:
    found = probabilities(reranker, text, ["0", "1"])
    shares: np.ndarray = found[:, 1] / found.sum(1)
    return shares


def test_pointwise_scores_are_the_share_of_one_against_zero(folder_config: dict[str, Any]) -> None:
    reranker = make(folder_config, method="pointwise")
    expected = [relevances(reranker, pointwise(text))[0] for text in TEXTS]
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), expected, rtol=1e-5)
    reranker.tokens_per_batch = 1
    np.testing.assert_allclose(reranker.score(QUERY, PASSAGES), expected, rtol=1e-5)
    assert np.ptp(expected) > 1e-4, "the passages matter"
    assert reranker.score(QUERY, []).shape == (0,)


def test_a_window_is_ranked_by_its_relevances(folder_config: dict[str, Any]) -> None:
    reranker = make(folder_config, method="logits-listwise")
    order = np.argsort(-relevances(reranker, listwise(TEXTS)))
    assert np.argsort(-reranker.score(QUERY, PASSAGES)).tolist() == order.tolist()
    small = make(folder_config, method="logits-listwise", window=3, stride=2)
    expected = list(range(5))
    for start, end in ((2, 5), (0, 3)):
        window = expected[start:end]
        best = np.argsort(-relevances(small, listwise([TEXTS[i] for i in window])))
        expected[start:end] = [window[i] for i in best]
    scores = small.score(QUERY, PASSAGES)
    assert np.argsort(-scores).tolist() == expected
    assert sorted(scores) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("decoding", "choose"), [("assignment", assigned), ("greedy", greedy)])
def test_a_permutation_fills_its_places(decoding: str, choose: Any, folder_config: dict[str, Any]) -> None:
    reranker, names = make(folder_config, method="permutation-listwise", decoding=decoding), [f" {c}" for c in "ABCDE"]
    found = probabilities(reranker, permutation(TEXTS, "<|mdm_mask|>" * 5), names)
    places = dict(choose(found, 5))
    assert np.argsort(-reranker.score(QUERY, PASSAGES)).tolist() == [places[i] for i in range(5)]

    twice = make(folder_config, method="permutation-listwise", decoding=decoding, steps=2)
    first = dict(choose(found, 2))
    answer = "".join(names[first[i]] if i in first else "<|mdm_mask|>" for i in range(5))
    masks, left = ([i for i in range(5) if i not in used] for used in (first.keys(), first.values()))
    second = choose(probabilities(twice, permutation(TEXTS, answer), [names[i] for i in left]), 3)
    places = first | {masks[mask]: left[text] for mask, text in second}
    assert np.argsort(-twice.score(QUERY, PASSAGES)).tolist() == [places[i] for i in range(5)]


def test_decodings_take_each_mask_and_text_once() -> None:
    found = np.array([[0.6, 0.5, 0.0], [0.5, 0.0, 0.0], [0.3, 0.2, 0.1]])
    assert assigned(found, 3) == [(0, 1), (1, 0), (2, 2)], "the largest product"
    assert greedy(found, 3) == [(0, 0), (2, 1), (1, 2)], "the largest first"
    assert (assigned(found, 1), greedy(found, 1)) == ([(0, 1)], [(0, 0)])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, [(0, 3)]),
        (10, [(0, 10)]),
        (20, [(0, 20)]),
        (25, [(5, 25), (0, 15)]),
        (100, [(start, start + 20) for start in range(80, -1, -10)]),
    ],
)
def test_windows_go_from_the_end_to_the_start(count: int, expected: list[tuple[int, int]]) -> None:
    assert list(windows(count, 20, 10)) == expected


def test_passages_are_cut_by_words_and_by_the_models_length(folder_config: dict[str, Any]) -> None:
    reranker = make(folder_config, method="pointwise", max_passage_words=3)
    long, short = Passage("a", "", "river sand clay sea"), Passage("b", "", "river  sand\nclay")
    first, second = reranker.score(QUERY, [long, short])
    np.testing.assert_allclose(first, second, rtol=1e-5)
    listwise = make(folder_config, method="logits-listwise", max_passage_words=10_000)
    assert sorted(listwise.score(QUERY, [Passage(str(i), "", "honey " * 9_000) for i in range(3)])) == [1, 2, 3]
    with pytest.raises(ValueError, match="no room for 3 passages"):
        listwise.score("honey " * 9_000, PASSAGES[:3])


def test_the_rotary_base_and_the_length_are_scaled(folder_config: dict[str, Any]) -> None:
    plain, scaled = (make(folder_config, method="pointwise", rope_factor=factor) for factor in (1, 4))
    assert scaled.backbone.max_length == 4 * plain.backbone.max_length
    base = [each.backbone.model.config.rope_parameters["rope_theta"] for each in (plain, scaled)]
    assert base == [500_000, 2_000_000]
    assert (plain.score(QUERY, PASSAGES) != scaled.score(QUERY, PASSAGES)).all()


def test_adapters_in_the_authors_layout_load(folder_config: dict[str, Any], tmp_path: Path) -> None:
    """Of PEFT's seven target names, LLaDA's own code has four."""
    adapter = write_random_adapter(folder_config["backbone"]["source"], tmp_path / "adapter")
    kept = (".q_proj.", ".k_proj.", ".v_proj.", ".up_proj.")
    tensors = load_file(adapter / "adapter_model.safetensors")
    few = {name: tensor for name, tensor in tensors.items() if any(part in name for part in kept)}
    assert 0 < len(few) < len(tensors)
    save_file(few, adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 32, "target_modules": names}))
    place = folder_config["backbone"] | {"adapter": str(adapter)}
    adapted = DiffuRank.load(DiffuRankConfig.model_validate({"backbone": place, "method": "pointwise"}), "cpu")
    plain = make(folder_config, method="pointwise")
    assert np.abs(adapted.score(QUERY, PASSAGES) - plain.score(QUERY, PASSAGES)).max() > 1e-4


@pytest.mark.parametrize("method", ["pointwise", "logits-listwise", "permutation-listwise"])
def test_a_run_is_reranked_and_named_by_the_method(method: str, make_job: MakeJob, folder: Path) -> None:
    job = make_job()
    config = yaml.safe_load((folder / "mine.yaml").read_text()) | {"method": method}
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    assert rerank(job).queries == 3
    assert {line.split()[5] for line in local(job.output).read_text().splitlines()} == {f"mine.{method}"}
    preset = reranker_config(f"diffurank-{method}")
    assert isinstance(preset, DiffuRankConfig)
    assert str(preset.backbone.adapter).startswith("liuqi6777/DiffuRank_")


def test_what_it_cannot_use_is_refused(folder_of: FolderOf, folder_config: dict[str, Any]) -> None:
    backbone = load_backbone(folder_of("bert"), device="cpu")
    config = DiffuRankConfig.model_validate({**folder_config, "method": "pointwise"})
    with pytest.raises(ValueError, match="no chat template"):
        DiffuRank(config, backbone)
    with pytest.raises(ValueError, match="stride 10 would skip passages"):
        DiffuRankConfig.model_validate({**folder_config, "method": "logits-listwise", "window": 5})
