"""Published models from index to ranking, without Ray: scores are those that sentence-transformers gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from sentence_transformers import MultiVectorEncoder, SentenceTransformer

from diffretriever.collections import Passage
from diffretriever.encoders.library import LibraryEncoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, text_table, write_block
from diffretriever.search import open_searcher
from tests.encoders.library_cases import TEXTS, encoder_of, late_interaction, published

QUERIES = ["honey in winter", "the river and the sea"]


def scores_of(encoder: LibraryEncoder, uri: str) -> np.ndarray:
    """Index the texts, open the index by what it says of its retriever, and return scores [queries, texts]."""
    index = PassageIndex.create(uri, manifest_of(encoder))
    passages = [Passage(str(i), "", text) for i, text in enumerate(TEXTS)]
    reps = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    block = write_block(index.uri, beside(text_table(passages, "c"), reps.to_arrow()))
    Committer(index).commit({"all": block}, [])
    hits = open_searcher(uri).search(QUERIES, k=len(TEXTS), modes=["dense"])["dense"]
    return np.array([[dict(found)[str(i)] for i in range(len(TEXTS))] for found in hits])


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_scores_of_single_vectors(similarity: str, tmp_path: Path) -> None:
    folder = published("bert", tmp_path, "mean")
    library = SentenceTransformer(str(folder), device="cpu", similarity_fn_name=similarity)
    expected = library.similarity(library.encode(QUERIES), library.encode(TEXTS)).numpy()
    found = scores_of(encoder_of(folder, similarity=similarity), str(tmp_path / "index"))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_scores_of_a_vector_a_token(tmp_path: Path) -> None:
    folder = late_interaction("stanford", tmp_path / "model")
    library = MultiVectorEncoder(str(folder), device="cpu")
    expected = library.similarity(library.encode_query(QUERIES), library.encode_document(TEXTS)).numpy()
    # The library sums over a query's vectors; the search takes their mean, and here each query has twelve.
    found = scores_of(encoder_of(folder, vectors="token"), str(tmp_path / "index"))
    np.testing.assert_allclose(found * 12, expected, rtol=2e-3)
