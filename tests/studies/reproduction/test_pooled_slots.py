"""The score of averaged slots and its evaluation, against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diffretriever.collections import Passage, open_collection, read_run
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.scoring.maxsim import mean_slots, pooled_slot_scores
from diffretriever.studies.reproduction.report import read_results
from diffretriever.studies.reproduction.runner import evaluate_pooled_slots

H = 8


def ragged(counts: list[int], seed: int) -> tuple[torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(counts), H, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def slow_mean(vectors: torch.Tensor) -> np.ndarray:
    used = [row for row in vectors.double().numpy() if np.abs(row).sum() > 0]
    return np.sum(used, axis=0) / len(used) if used else np.zeros(H)


def test_scores_are_products_of_means() -> None:
    queries, query_offsets = ragged([1, 4, 2], 0)
    passages, passage_offsets = ragged([3, 1, 5, 2], 1)
    passages[4] = 0
    found = pooled_slot_scores(queries, query_offsets, passages, passage_offsets)
    for i in range(3):
        for j in range(4):
            query = slow_mean(queries[query_offsets[i] : query_offsets[i + 1]])
            passage = slow_mean(passages[passage_offsets[j] : passage_offsets[j + 1]])
            assert found[i, j].item() == pytest.approx(float(query @ passage), abs=1e-6)
    assert found.dtype == torch.float32


def test_means_are_not_normalised_again() -> None:
    vectors, offsets = ragged([2], 2)
    opposed = torch.stack([vectors[0], -vectors[0]])
    assert mean_slots(opposed, offsets).abs().max() == 0
    assert mean_slots(vectors, offsets).norm() < 1


def test_texts_without_vectors() -> None:
    queries, query_offsets = ragged([0, 2], 5)
    passages, passage_offsets = ragged([2, 0], 6)
    found = pooled_slot_scores(queries, query_offsets, passages, passage_offsets)
    assert found[0, 0] == 0
    assert (found[:, 1] == -torch.inf).all()
    assert np.isfinite(found[1, 0].item())


def test_different_sizes_are_refused() -> None:
    queries, offsets = ragged([1], 7)
    with pytest.raises(ValueError, match="8 and 4 dimensions"):
        pooled_slot_scores(queries, offsets, queries[:, :4], offsets)


def test_the_evaluation_ranks_by_averaged_slots(
    tmp_path: Path, root: Path, encoder: Encoder, index: PassageIndex
) -> None:
    collection = open_collection(str(root / "scifact"))
    passages = [record for record in collection.records() if isinstance(record, Passage)]
    represented = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
    output = tmp_path / "output"
    job = EvaluateJob(index=index.uri, collection=str(root / "scifact"), output=output, device="cpu", top_k=10)
    evaluate_pooled_slots(job, "c")
    run = read_run(output / "dense.trec")
    queries = collection.queries("test")
    asked = encoder.encode_queries([query.text for query in queries])
    for i, query in enumerate(queries):
        scores = {
            passage.id: float(_stored_mean(asked, i) @ _stored_mean(represented, j))
            for j, passage in enumerate(passages)
        }
        best = sorted(scores.values(), reverse=True)[:10]
        assert list(run[query.id].values()) == pytest.approx(best, abs=1e-5)
        assert all(scores[passage] == pytest.approx(score, abs=1e-5) for passage, score in run[query.id].items())
    assert list(read_results(output)) == ["dense"]


def _stored_mean(texts: Representations, text: int) -> np.ndarray:
    return slow_mean(torch.from_numpy(texts.vectors_MH[texts.offsets[text] : texts.offsets[text + 1]]))
