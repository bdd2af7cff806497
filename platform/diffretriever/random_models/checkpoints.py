"""Checkpoints with random weights in the families' published formats: for tests, and to dry-run a cluster.

`python -m diffretriever.random_models.checkpoints --family dream --output DIR`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from safetensors.torch import save_file

from diffretriever.backbones.device import DTYPES
from diffretriever.random_models.configs import POSITIONS, published_config
from diffretriever.random_models.tensors import Shapes, Sizes, bert_shapes, decoder_shapes, llada_shapes, random_tensors
from diffretriever.random_models.tokenizers import SPECIAL_TOKENS, build_tokenizer, write_tokenizer

FAMILIES = tuple(SPECIAL_TOKENS)


SHAPES: dict[str, Callable[[Sizes], Shapes]] = {
    "dream": lambda size: decoder_shapes(size, qkv_bias=True),
    "qwen2": lambda size: decoder_shapes(size, qkv_bias=True),
    "llama3": lambda size: decoder_shapes(size, qkv_bias=False),
    "llada": llada_shapes,
    "bert": bert_shapes,
}


def write_random_checkpoint(  # noqa: PLR0913 (the sizes of a model)
    family: str,
    folder: str | Path,
    *,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    intermediate_size: int | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    tokenizer: bool = True,
) -> Path:
    """Write a checkpoint with random weights as the family publishes it, and return its folder.

    Config fields and tensor names are those of the public checkpoints. Equal arguments give equal files, and
    the weights do not depend on `shards`. One shard at a time is held in memory.

    Args:
        family: `dream`, `llada`, `qwen2`, `llama3` or `bert`.
        folder: Where to write; made if need be.
        hidden_size: Width of the hidden states, a multiple of `heads`.
        layers: Number of layers.
        heads: Attention heads.
        kv_heads: Heads of keys and values; by default half of `heads` where the family groups them.
        intermediate_size: Width of the feed-forward layers, by default twice `hidden_size`.
        vocab_size: Rows of embeddings and head, by default as many as the tokenizer has tokens.
        seed: Of the weights.
        dtype: Of the weights: `float32`, `bfloat16` or `float16`.
        shards: Weight files.
        tokenizer: Whether to write a small working tokenizer.

    Raises:
        ValueError: Unknown family or dtype, or sizes that do not fit each other.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}. Use {', '.join(FAMILIES)}.")
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}. Use {', '.join(DTYPES)}.")
    words = build_tokenizer(family)
    grouped = family in {"dream", "qwen2", "llama3"}
    size = Sizes(
        hidden=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or (max(1, heads // 2) if grouped else heads),
        intermediate=intermediate_size or 2 * hidden_size,
        vocab=vocab_size or words.get_vocab_size(),
        positions=POSITIONS[family],
    )
    _check_sizes(size, words.get_vocab_size(), shards)
    config = published_config(family, size, words.token_to_id, dtype)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _write_weights(folder, SHAPES[family](size), dtype, seed, shards)
    if tokenizer:
        write_tokenizer(family, words, folder)
    return folder


def _check_sizes(size: Sizes, tokens: int, shards: int) -> None:
    if size.hidden % size.heads or size.heads % size.kv_heads:
        raise ValueError("hidden_size must be a multiple of heads, and heads of kv_heads.")
    if size.vocab < tokens:
        raise ValueError(f"vocab_size must be at least {tokens}, the tokens of the small tokenizer.")
    if shards < 1:
        raise ValueError("shards must be at least 1.")


def _write_weights(folder: Path, shapes: Shapes, dtype: str, seed: int, shards: int) -> None:
    tensors = random_tensors(shapes, DTYPES[dtype], seed)
    places: dict[str, str] = {}
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        content = dict(islice(tensors, (shard + 1) * len(shapes) // shards - shard * len(shapes) // shards))
        save_file(content, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(content, name)
    if shards > 1:
        index = {"metadata": {"total_size": sum((folder / name).stat().st_size for name in set(places.values()))}}
        text = json.dumps(index | {"weight_map": places}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a random checkpoint as the command line says."""
    parser = argparse.ArgumentParser(description="Write a checkpoint with random weights.")
    parser.add_argument("--family", required=True, choices=FAMILIES)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--intermediate-size", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--no-tokenizer", dest="tokenizer", action="store_false")
    options = vars(parser.parse_args(arguments))
    family, folder = options.pop("family"), options.pop("output")
    try:
        write_random_checkpoint(family, folder, **options)
    except ValueError as error:
        parser.error(str(error))
    print(folder)


if __name__ == "__main__":
    main()
