"""The score of averaged slots and its evaluation, against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diffretriever.collections import Passage, open_collection, read_run
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.studies.reproduction.report import read_results
from diffretriever.studies.reproduction.runner import evaluate_pooled_slots
from diffretriever.vectors.representations import Representations

H = 8


def slow_mean(vectors: torch.Tensor) -> np.ndarray:
    used = [row for row in vectors.double().numpy() if np.abs(row).sum() > 0]
    return np.sum(used, axis=0) / len(used) if used else np.zeros(H)


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
