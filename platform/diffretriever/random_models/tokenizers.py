"""Small tokenizers for random checkpoints, in the files each family publishes.

The special tokens and the chat templates are the families'; the vocabulary is learned from the few sentences below.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from diffretriever.backbones.published import Published

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


def build_tokenizer(published: Published) -> Tokenizer:
    """Return a family's small tokenizer with its special tokens; equal for equal families."""
    is_word_pieces = "vocab.txt" in published.tokenizer_files
    tokenizer = _word_pieces(published.special_tokens) if is_word_pieces else _merged_bytes(published.special_tokens)
    roles = published.tokenizer_config
    if "cls_token" in roles:
        ids = tokenizer.get_vocab()
        first, last = ((token, ids[token]) for token in (roles["cls_token"], roles["sep_token"]))
        tokenizer.post_processor = processors.BertProcessing(last, first)
    return tokenizer


def write_tokenizer(published: Published, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that the family publishes."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(tokenizer.token_to_id(token)): {"content": token, **flags} for token in published.special_tokens}
    config: dict[str, Any] = published.tokenizer_config | {"added_tokens_decoder": added}
    if "tokenizer.json" in published.tokenizer_files:
        tokenizer.save(str(folder / "tokenizer.json"))
    if set(published.tokenizer_files) - {"tokenizer.json"}:
        tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _merged_bytes(special: tuple[str, ...]) -> Tokenizer:
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
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _word_pieces(special: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # Made by hand, for the trainer of this kind numbers and even chooses its pieces differently every time.
    words = set(re.findall(r"\w+", " ".join(TEXT).lower()))
    letters = set("".join(words)) | set(string.ascii_lowercase + string.digits)
    pairs = {vowel + letter for vowel in "aeiou" for letter in string.ascii_lowercase}
    pieces = [*sorted(words | letters | set(string.punctuation)), *(f"##{end}" for end in sorted(letters | pairs))]
    numbered = {piece: number for number, piece in enumerate([*special, *pieces])}
    tokenizer.model = models.WordPiece(numbered, unk_token="[UNK]")  # noqa: S106 (not a password)
    return tokenizer
