"""The dense loss through a codec: what an index would store, gradients straight through, a codec that moves along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from diffretriever.codecs.product import Codec
from diffretriever.encoders import load_encoder
from diffretriever.index.vectors import codec_of
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import Recipe, TrainJob
from diffretriever.training.adapters import adapter_tensors, trainable_parameters
from diffretriever.training.compression import CODEC_FILE, stored_vectors, through_codec
from diffretriever.training.trainable import TextVectors, with_training_lengths
from tests.index import compressed_cases
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of

CODECS = ("product1", "product2")


def texts_of(vectors_MH: Tensor, counts: list[int]) -> TextVectors:
    """Vectors dealt out to texts, those of a text first in its row."""
    valid_BK = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    room_BKH = torch.zeros(*valid_BK.shape, vectors_MH.shape[1])
    room_BKH[valid_BK] = vectors_MH
    none_BT = torch.zeros(len(counts), 0)
    none_BLH = room_BKH[:, :0]
    return TextVectors(room_BKH, valid_BK, none_BT.long(), none_BT, none_BT.bool(), none_BLH, none_BT.bool())


def some_vectors(count: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(count, 16, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.train(2, some_vectors(300).numpy())


@pytest.mark.parametrize("name", CODECS)
def test_trained_on_the_very_bits_that_an_index_stores(name: str, tmp_path: Path) -> None:
    index = compressed_cases.fill(str(tmp_path / "index"), 250, 150)
    encoded_MH = compressed_cases.stored_vectors(index)
    compressed = compressed_cases.compressed(index, name)
    expected_MH = compressed_cases.stored_vectors(compressed)
    assert not np.array_equal(expected_MH, encoded_MH)
    # What rounds to the encoder's fp16 vectors, as fp32 vectors in training do.
    rng = np.random.default_rng(0)
    finer_MH = encoded_MH.astype(np.float32) * (1 + rng.uniform(-2e-4, 2e-4, encoded_MH.shape).astype(np.float32))
    assert np.array_equal(finer_MH.astype(np.float16), encoded_MH)
    counts = [3] * (len(finer_MH) // 3) + [len(finer_MH) % 3] * bool(len(finer_MH) % 3)
    texts = texts_of(torch.from_numpy(finer_MH), counts)
    found = through_codec(texts, codec_of(compressed.uri, compressed.manifest))
    assert np.array_equal(found.vectors_BKH[found.valid_BK].numpy(), expected_MH.astype(np.float32))
    assert found.vectors_BKH.dtype == torch.float32


def test_gradients_pass_unchanged(codec: Codec) -> None:
    vectors_MH = some_vectors(6, seed=1).requires_grad_()
    texts = texts_of(vectors_MH, [1, 3, 2])
    weights_BKH = torch.randn(3, 3, 16, generator=torch.Generator().manual_seed(2))
    out = through_codec(texts, codec)
    (out.vectors_BKH**2 * weights_BKH).sum().backward()
    # The derivative is taken at the stored vectors, and given to the vectors before.
    expected_MH = (2 * stored_vectors(vectors_MH, codec) * weights_BKH[texts.valid_BK]).detach()
    assert vectors_MH.grad is not None
    assert torch.equal(vectors_MH.grad, expected_MH)
    assert torch.equal(out.vectors_BKH[~texts.valid_BK], torch.zeros(3, 16))
    assert torch.equal(out.valid_BK, texts.valid_BK)


def test_nothing_is_made_of_what_is_not_finite(codec: Codec) -> None:
    texts = texts_of(some_vectors(3), [2, 1])
    texts.vectors_BKH[0, 0, 0] = torch.nan
    assert through_codec(texts, codec) is texts
    with pytest.raises(ValueError, match="NaN or infinity"):
        stored_vectors(texts.vectors_BKH[0], codec)


def fitted(retriever: BackboneRetriever, recipe: Recipe, passages: list[str]) -> Codec:
    """A codec of passages encoded by the untrained weights, the way an index would be."""
    assert recipe.compression is not None
    encoder = load_encoder(with_training_lengths(retriever, recipe), "cpu")
    return Codec.train(recipe.compression.bits, encoder.encode_passages([""] * len(passages), passages).vectors_MH)


def test_a_training_fits_its_codec_as_it_goes(folder_of: FolderOf) -> None:
    recipe = quick_recipe(compression="product2", compression_refit=2, max_steps=4)
    session = session_of(config_of("masked-bert", folder_of), recipe)
    trainer, digests, decoded = session.trainer, [], 0.0
    for metrics in trainer.run():
        assert trainer.compression.codec is not None
        digests.append(trainer.compression.codec.digest)
        decoded = metrics.dense_loss
    assert digests[0] == digests[1] != digests[2] == digests[3]
    texts = [passage.text for passage in trainer.batches.passages(0, 10_000)]
    assert len(texts) == 48 * 3, "all passages of an epoch, since they are fewer than a sample"
    assert fitted(config_of("masked-bert", folder_of), recipe, texts).digest == digests[0]
    plain = run(session_of(config_of("masked-bert", folder_of), quick_recipe(max_steps=4)), 4)
    assert decoded != plain[-1].dense_loss


def test_the_sample_starts_at_the_step(folder_of: FolderOf) -> None:
    batches = session_of(config_of("masked-bert", folder_of), quick_recipe()).trainer.batches
    ids = [[passage.id for passage in batches.passages(step, 30)] for step in range(6)]
    for step, found in enumerate(ids):
        assert len(found) == 30
        of_step = [query_id for part in batches.parts(step) for query_id in part.query_ids]
        assert [name.split("-")[0].replace("p", "q") for name in found[:24:3]] == of_step
    assert len(batches.passages(3, 10_000)) == 48 * 3


@pytest.mark.parametrize("negatives", ["gathered", "cached"])
def test_resumed_bit_for_bit(negatives: str, folder_of: FolderOf, tmp_path: Path) -> None:
    """The codec of step 2 is in use at step 4, when its weights are long gone."""
    retriever = config_of("masked-bert", folder_of)
    changes = {"negatives": negatives, "max_steps": 5, "compression_refit": 2, "lora_dropout": 0.3}
    recipe = quick_recipe(compression="product2", **changes)
    straight = session_of(retriever, recipe)
    expected = run(straight, 5)
    killed = session_of(retriever, recipe)
    run(killed, 3)
    killed.trainer.save(tmp_path)
    assert (tmp_path / CODEC_FILE).is_file()
    resumed = session_of(retriever, recipe)
    resumed.trainer.load(tmp_path)
    assert resumed.trainer.compression.codec is not None
    assert killed.trainer.compression.codec is not None
    assert resumed.trainer.compression.codec.digest == killed.trainer.compression.codec.digest
    found = run(resumed, 5)
    assert [(m.loss, m.gradient_norm) for m in found] == [(m.loss, m.gradient_norm) for m in expected[3:]]
    first, second = adapter_tensors(straight.encoder.backbone), adapter_tensors(resumed.encoder.backbone)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_broken_loss_still_names_its_queries(folder_of: FolderOf) -> None:
    recipe = quick_recipe(compression="product2", compression_refit=3)
    session = session_of(config_of("pooled-dream", folder_of), recipe)
    run(session, 2)
    with torch.no_grad():
        next(iter(trainable_parameters(session.encoder.backbone).values())).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the loss is nan at step 2, with these queries on worker 0: q\d+, q\d+\."):
        run(session, 3)


def test_the_codec_has_a_text_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--train", "x", "--output", str(tmp_path), "--compression", "product1"]
    job = TrainJob.from_command_line(given)
    assert job.hyperparameters.compression == CodecConfig(1)
    assert Recipe.model_validate_json(job.hyperparameters.model_dump_json()) == job.hyperparameters
    assert TrainJob.from_command_line(given[:4]).compression is None
    with pytest.raises(SystemExit):
        TrainJob.from_command_line([*given[:5], "product3"])
    assert "'product3' is not a codec" in capsys.readouterr().err
