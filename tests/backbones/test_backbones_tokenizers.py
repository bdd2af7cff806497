"""Tokenizers of checkpoint files, and special tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone, load_vocabulary
from tests.backbones.helpers import BackboneOf, FolderOf, edit_config

SPECIAL: dict[str, tuple[str | None, str, str]] = {
    "dream": ("<|mask|>", "<|endoftext|>", "<|im_end|>"),
    "qwen2": (None, "<|im_end|>", "<|im_end|>"),
    "llada": ("<|mdm_mask|>", "<|endoftext|>", "<|eot_id|>"),
    "llama3": (None, "<|eot_id|>", "<|eot_id|>"),
    "bert": ("[MASK]", "[SEP]", "[SEP]"),
    "modernbert": ("[MASK]", "[SEP]", "[SEP]"),
}
"""Family → mask, end of a sequence, end of a turn."""
CHATS = {
    "dream": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU <|im_end|>\n<|im_start|>assistant\n",
    "llada": "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
}
CHATS["qwen2"] = CHATS["dream"]
CHATS["llama3"] = CHATS["llada"].replace("<|startoftext|>", "<|begin_of_text|>")
TEXT = 'Passage: "Bees store honey, naïve €5". The words are: "'


def test_special_tokens(family: str, backbone: Backbone) -> None:
    vocabulary = backbone.vocabulary
    ids = vocabulary.tokenizer.get_vocab()
    found = (vocabulary.mask_token_id, vocabulary.eos_token_id, vocabulary.turn_end_id)
    assert found == tuple(None if token is None else ids[token] for token in SPECIAL[family])
    assert len(vocabulary.tokenizer) <= backbone.vocab_size


@pytest.mark.parametrize("name", sorted(CHATS))
def test_chat_templates(name: str, backbone_of: BackboneOf) -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U "}]
    tokenizer = backbone_of(name).vocabulary.tokenizer
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == CHATS[name]


def test_dream_reads_tokenizer_json_where_there_is_one(backbone_of: BackboneOf, copy_of: FolderOf) -> None:
    folder = copy_of("dream")
    published = backbone_of("dream").vocabulary.tokenizer
    published.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").unlink()
    other = load_backbone(folder, device="cpu").vocabulary.tokenizer
    assert other(TEXT)["input_ids"] == published(TEXT)["input_ids"]


def test_without_tokenizer_files_the_weights_still_load(family: str, copied: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt"):
        (copied / file).unlink(missing_ok=True)
    backbone = load_backbone(copied, device="cpu")
    assert backbone.vocabulary.pad_token_id >= 0
    if family not in {"bert", "modernbert"}:
        assert (backbone.vocabulary.mask_token_id is None) == backbone.is_causal
    with pytest.raises(ValueError, match="copy the checkpoint's tokenizer files there"):
        _ = backbone.vocabulary.tokenizer


def test_a_vocabulary_without_a_length_is_refused(family: str, copied: Path) -> None:
    name = "max_sequence_length" if family == "llada" else "max_position_embeddings"
    edit_config(copied, **{name: ...})
    with pytest.raises(ValueError, match=rf"config\.json: field '{name}' is missing"):
        load_vocabulary(copied)
