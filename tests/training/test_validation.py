"""Validation during training gives the jobs' measures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffretriever.collections import open_collection
from diffretriever.collections.records import Passage
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, text_table, write_block
from diffretriever.pipelines.validation import MEASURE, Validator
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.training.adapters import trainable_parameters
from tests.training.made_up_collection import write_collection
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, session_of


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("collection"))


def by_the_jobs(encoder: BackboneEncoder, collection: Path, folder: Path) -> dict[str, float]:
    index = PassageIndex.create(str(folder / "index"), manifest_of(encoder))
    passages = [record for record in open_collection(str(collection)).records() if isinstance(record, Passage)]
    encoded = encoder.encode_passages([p.title for p in passages], [p.text for p in passages]).to_arrow()
    Committer(index).commit({"all": write_block(index.uri, beside(text_table(passages, "c"), encoded))}, [])
    job = EvaluateJob(index=index.uri, collection=str(collection), output=folder / "out", measures=(MEASURE,))
    return {mode: result.mean[MEASURE] for mode, result in evaluate_job(job, "test").items()}


@pytest.mark.parametrize("case", ["masked-dream", "generated-llama3"])
def test_validation_equals_the_jobs_measures(case: str, collection: Path, folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = config_of(case, folder_of)
    encoder = load_encoder(retriever, "cpu")
    assert isinstance(encoder, BackboneEncoder)
    actual = Validator(str(collection)).measure(encoder)
    expected = by_the_jobs(encoder, collection, tmp_path)
    assert actual == pytest.approx(expected)
    assert set(actual) == set(retriever.modes)
    assert 0 < actual["dense"] < 1


def test_validation_uses_the_current_weights(collection: Path, folder_of: FolderOf) -> None:
    session = session_of(config_of("generated-llama3", folder_of), quick_recipe(gradient_checkpointing=True))
    validator = Validator(str(collection))
    first = validator.measure(session.encoder)
    assert validator.measure(session.encoder) == first
    with torch.no_grad():
        for name, parameter in trainable_parameters(session.encoder.backbone).items():
            if ".lora_B." in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    assert validator.measure(session.encoder) != first
    # What validation has computed must not be in the way of gradients.
    assert next(session.trainer.run()).gradient_norm > 0


def test_a_collection_with_bad_records_is_refused(tmp_path: Path) -> None:
    folder = write_collection(tmp_path)
    with (folder / "corpus.jsonl").open("a") as lines:
        lines.write('{"_id": "broken"}\n')
    with pytest.raises(ValueError, match=r"corpus\.jsonl:\d+: .*correct the collection"):
        Validator(str(folder))
