"""Small tokenizers for random checkpoints, in the files each family publishes.

The special tokens and the form of the chat templates are those of the families' model cards; the vocabulary
is learned from the few sentences below.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS: dict[str, tuple[str, ...]] = {
    "dream": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"),
    "qwen2": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "llada": (
        "<|startoftext|>",
        "<|endoftext|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|mdm_mask|>",
    ),
    "llama3": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}

ROLES: dict[str, dict[str, str]] = {
    "dream": {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": "<|mask|>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llada": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "bert": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
}

_CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_HEADERS = (
    "{{ bos_token }}{% for turn in messages %}<|start_header_id|>{{ turn['role'] }}<|end_header_id|>\n\n"
    "{{ turn['content'] | trim }}<|eot_id|>{% endfor %}"
)


# An expression, not text: a template's last newline would be dropped.
_ASSISTANT = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"


CHAT_TEMPLATES = {
    "dream": _CHATML,
    "qwen2": _CHATML,
    "llada": _HEADERS + _ASSISTANT,
    "llama3": _HEADERS + "{% if add_generation_prompt %}" + _ASSISTANT + "{% endif %}",
}

TEXT = (
    "You are an AI assistant that can understand human language.",
    'Query: "what do honey bees eat in winter". Use one word to represent the query in a retrieval task.',
    'Passage: "Bees store honey in summer and eat it in winter". Use a few words to represent the passage.',
    "Make sure your words are in lowercase. The word is. The words are. The query and the passage.",
    "A river carries sand and clay from the mountains to the sea, where the water slows and drops its load.",
    "The printing press made books cheap; within fifty years millions of copies were sold in Europe.",
    "Copper conducts electricity well and does not rust, so wires and water pipes are made of copper.",
    "A fever is a rise of body temperature; rest, water and time cure most of them without a doctor.",
)


SENTENCES_AND_WORDS = [*TEXT, *(word for sentence in TEXT for word in sentence.split())]
"""Words alone too, so that they become tokens with and without a leading space."""


MERGED_VOCABULARY = 1200


def build_tokenizer(family: str) -> Tokenizer:
    """Return the family's small tokenizer with its special tokens; equal for equal families."""
    if family == "bert":
        return _word_piece()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES_AND_WORDS, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS[family]))
    return tokenizer


def write_tokenizer(family: str, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files the family publishes. Dream's name remote code and leave tokenizer.json out."""
    config: dict[str, Any] = {**ROLES[family], "added_tokens_decoder": _added_tokens(family, tokenizer)}
    if family in CHAT_TEMPLATES:
        config["chat_template"] = CHAT_TEMPLATES[family]
    if family == "dream":
        config["tokenizer_class"] = "DreamTokenizer"
        config["auto_map"] = {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}
        tokenizer.model.save(str(folder))
    else:
        config["tokenizer_class"] = {"bert": "BertTokenizer", "qwen2": "Qwen2Tokenizer"}.get(
            family, "PreTrainedTokenizerFast"
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    if family == "bert":
        tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = list(SPECIAL_TOKENS["bert"])
    # Made by hand, for the trainer of this kind numbers and even chooses its pieces differently every time.
    words = set(re.findall(r"\w+", " ".join(TEXT).lower()))
    letters = set("".join(words)) | set(string.ascii_lowercase + string.digits)
    pairs = {vowel + letter for vowel in "aeiou" for letter in string.ascii_lowercase}
    pieces = [*sorted(words | letters | set(string.punctuation)), *(f"##{end}" for end in sorted(letters | pairs))]
    numbered = {piece: number for number, piece in enumerate([*special, *pieces])}
    tokenizer.model = models.WordPiece(numbered, unk_token="[UNK]")  # noqa: S106 (not a password)
    first, last = ("[CLS]", special.index("[CLS]")), ("[SEP]", special.index("[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(last, first)
    return tokenizer


def _added_tokens(family: str, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {str(tokenizer.token_to_id(token)): {"content": token, **flags} for token in SPECIAL_TOKENS[family]}
