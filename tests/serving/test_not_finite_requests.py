"""Texts that the model encodes as NaN are problems; other requests succeed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import numpy as np
import pytest
from fastapi.testclient import TestClient

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.index.table import PassageIndex
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.vectors.representations import Representations
from tests.serving.serving_cases import local_service

BAD, GOOD, BAD_TOKENS = "slab slab slab slab", "heat", 16


@pytest.fixture
def client(own_index: PassageIndex) -> Iterator[TestClient]:
    good = MaskedEncoder.encode

    def encode(self: MaskedEncoder, texts: Sequence[PreparedText]) -> Representations:
        encoded = good(self, texts)
        for row in range(len(texts)):
            if texts[row].n_tokens == BAD_TOKENS:
                encoded.vectors_MH[encoded.offsets[row]] = np.nan
        return encoded

    app = make_api(local_service(own_index.uri), Keys(), None)
    with patch.object(MaskedEncoder, "encode", encode), TestClient(app) as made:
        yield made


def test_a_query_encoded_as_nan_is_a_problem_that_names_it(client: TestClient) -> None:
    for body in ({"query": BAD}, {"query": [GOOD, BAD]}):
        refused = client.post("/search", json=body)
        assert refused.status_code == 422
        assert refused.json()["field"] == "query"
        number = 0 if isinstance(body["query"], str) else 1
        assert f"query number {number} ('{BAD}') is encoded as NaN" in refused.json()["detail"]


def test_a_passage_encoded_as_nan_is_a_problem_that_names_it(client: TestClient, own_index: PassageIndex) -> None:
    sent = [{"id": "n1", "text": GOOD}, {"id": "n2", "text": BAD}]
    refused = client.post("/passages", json={"passages": sent})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "passage 'n2' would be stored with NaN or infinity"
    version = own_index.version
    own_index.refresh()
    assert own_index.version == version
