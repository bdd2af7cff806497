"""Representations of seeded random checkpoints equal those in `golden/`.

They change only when a method changes on purpose (or the small tokenizers of random checkpoints do). Then:
`PYTHONPATH=platform:. python -m tests.encoders.test_golden`, and say in the commit why they changed.
"""

from __future__ import annotations

import string
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from diffretriever.encoders import load_encoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import BackboneConfig, MaskedRetriever, NeuralRetriever, PooledRetriever
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.vectors.representations import Representations

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("masked-dream-q2p3", "pooled-llada", "masked-bert-q1p2")
SENTENCES = (
    "Honey keeps for years because it holds so little water.",
    "The river froze in winter, and copper pipes burst all over the town!",
    "",
    "Who printed the first books in Europe?",
    "rest and water cure a fever",
)
TITLES = ("Honey", "", "", "Books", "fever")
SEED = 7


def encode(name: str, folder: Path) -> dict[str, np.ndarray]:
    method, family, *budget = name.split("-")
    if family == "bert":
        _write_bert(folder)
    else:
        write_random_checkpoint(family, folder, hidden_size=32, seed=SEED)
    place = BackboneConfig(source=str(folder), dtype="float32")
    config: NeuralRetriever = PooledRetriever(backbone=place)
    if method == "masked":
        config = MaskedRetriever(backbone=place, budget=Budget.parse(budget[0]))
    encoder = load_encoder(config, "cpu")
    sides = {"query": encoder.encode_queries(SENTENCES), "passage": encoder.encode_passages(TITLES, SENTENCES)}
    return {
        f"{side}.{field}": getattr(actual, field)
        for side, actual in sides.items()
        for field in Representations.__dataclass_fields__
    }


def _write_bert(folder: Path) -> None:
    """With a fixed vocabulary, because the trained one differs between runs."""
    write_random_checkpoint("bert", folder, hidden_size=32, seed=SEED, vocab_size=400, tokenizer=False)
    characters = [*string.ascii_lowercase, *string.digits, *'".,:;!?']
    words = ["books", "copper", "fever", "honey", "passage", "query", "river", "water", "winter", "word", "words"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *characters, *(f"##{character}" for character in characters), *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, tmp_path: Path) -> None:
    actual = encode(name, tmp_path)
    with np.load(GOLDEN / f"{name}.npz") as golden:
        assert sorted(actual) == sorted(golden)
        for field, value in actual.items():
            expected = golden[field]
            assert value.dtype == expected.dtype, field
            assert value.shape == expected.shape, field
            if field.endswith("vectors_MH"):
                assert_within_one_ulp(value, expected)
            elif field.endswith("impact_weights"):
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(value, expected, err_msg=field)


def assert_within_one_ulp(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to one float16 step, because CPUs differ in the last bits; near zero up to 1e-6."""
    step = np.spacing(np.maximum(np.abs(actual), np.abs(expected))).astype(np.float32)
    distance = np.abs(actual.astype(np.float32) - expected.astype(np.float32))
    assert (distance <= np.maximum(step, 1e-6)).all()


def regenerate() -> None:
    torch.set_num_threads(1)
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            np.savez_compressed(GOLDEN / f"{name}.npz", allow_pickle=False, **encode(name, Path(folder)))


if __name__ == "__main__":
    regenerate()
