"""Checkpoints with random weights and a small tokenizer, in the published formats.

`python -m diffretriever.testing.checkpoints --family dream --output DIR`

Special tokens and chat templates are the published ones; the vocabulary is trained on the sentences below.
"""

from __future__ import annotations

import argparse
import json
import re
import string
from collections.abc import Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from diffretriever.testing import FAMILIES
from diffretriever.testing.published import Published, Shapes, Sizes

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
"""Includes single words, which then become tokens with and without a leading space."""
MERGED_VOCABULARY = 1200


def build_tokenizer(published: Published) -> Tokenizer:
    """Return the small tokenizer of an architecture, with its special tokens; the result is deterministic."""
    is_word_pieces = "vocab.txt" in published.tokenizer_files
    tokenizer = _word_pieces(published.special_tokens) if is_word_pieces else _merged_bytes(published.special_tokens)
    roles = published.tokenizer_config
    if "cls_token" in roles:
        ids = tokenizer.get_vocab()
        first, last = ((token, ids[token]) for token in (roles["cls_token"], roles["sep_token"]))
        tokenizer.post_processor = processors.BertProcessing(last, first)
    if published.adds_bos:
        bos = roles["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def write_tokenizer(published: Published, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the published tokenizer files."""
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
    # Without the trainer, which is not deterministic.
    words = set(re.findall(r"\w+", " ".join(TEXT).lower()))
    letters = set("".join(words)) | set(string.ascii_lowercase + string.digits)
    pairs = {vowel + letter for vowel in "aeiou" for letter in string.ascii_lowercase}
    pieces = [*sorted(words | letters | set(string.punctuation)), *(f"##{end}" for end in sorted(letters | pairs))]
    numbered = {piece: number for number, piece in enumerate([*special, *pieces])}
    tokenizer.model = models.WordPiece(numbered, unk_token="[UNK]")  # noqa: S106 (not a password)
    return tokenizer


def write_random_checkpoint(  # noqa: PLR0913 (the sizes of a model)
    family: str,
    folder: str | Path,
    *,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    vocab_size: int | None = None,
    seed: int = 0,
    shards: int = 1,
    tokenizer: bool = True,
) -> Path:
    """Write a random float32 checkpoint in the published format, and return its folder.

    Equal arguments give equal files, and weights do not depend on `shards`, the number of weight files. `hidden_size`
    must be a multiple of `heads`. `vocab_size` defaults to that of the small tokenizer, which `tokenizer` writes.

    Raises:
        ValueError: Unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: use {', '.join(FAMILIES)}")
    published = FAMILIES[family]
    words = build_tokenizer(published)
    size = Sizes(
        hidden=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=heads // 2 if published.grouped_heads else heads,
        intermediate=2 * hidden_size,
        vocab=vocab_size or words.get_vocab_size(),
        positions=published.positions,
    )
    folder = Path(folder)
    write_config(published, size, folder, "float32")
    shapes = published.shapes(size)
    write_weights(folder, shapes, random_tensors(shapes, seed), shards)
    if tokenizer:
        write_tokenizer(published, words, folder)
    return folder


def write_config(published: Published, size: Sizes, folder: Path, dtype: str) -> None:
    """Write a checkpoint's config.json, with the `dtype` of its weights."""
    words = build_tokenizer(published)
    config = published.config(size, words.token_to_id) | {"torch_dtype": dtype, "transformers_version": "4.46.2"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def write_weights(folder: Path, names: Sized, tensors: Iterator[tuple[str, Tensor]], shards: int) -> None:
    """Write named tensors as the weight files of a checkpoint, with one file in memory at a time."""
    file_names: dict[str, str] = {}
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        content = dict(islice(tensors, (shard + 1) * len(names) // shards - shard * len(names) // shards))
        save_file(content, folder / name, metadata={"format": "pt"})
        file_names |= dict.fromkeys(content, name)
    if shards > 1:
        index = {"metadata": {"total_size": sum((folder / name).stat().st_size for name in set(file_names.values()))}}
        text = json.dumps(index | {"weight_map": file_names}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def random_tensors(shapes: Shapes, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a random tensor for each shape.

    Norms are around one, and matrices preserve the size of their input. Attention is then far from uniform, so that
    tests detect wrong positions, masks and rotary bases.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        is_matrix = len(shape) == 2
        yield name, values / shape[1] ** 0.5 if is_matrix else values * 0.1 + is_norm_weight(name)


def is_norm_weight(name: str) -> bool:
    """Whether a tensor of this name is the weight of a norm, in any architecture."""
    return ("norm" in name.lower() and name.endswith(".weight")) or name.endswith("ln_f.weight")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write a checkpoint with random weights.")
    parser.add_argument("--family", required=True, choices=list(FAMILIES))
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    print(write_random_checkpoint(options.family, options.output))


if __name__ == "__main__":
    main()
