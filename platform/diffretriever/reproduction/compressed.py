"""The evaluation of a row's index compressed: its scores beside those of the index before, and the size of both.

Sizes are of the vectors alone, as the paper's are: before, what zstd at level 3 leaves of them in bf16, which is how
the authors store them (reference §2.5); after, the codes and the codec.
"""

from __future__ import annotations

import pyarrow as pa
import torch

from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.files import file_size, write_text
from diffretriever.index.rewrite import sample_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_place
from diffretriever.pipelines.compress import compress_index
from diffretriever.schemas.compress import CompressJob
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.reproduce import COMPRESSED, STORAGE_FILE, UNCOMPRESSED, IndexStorage

CODEC = "residual2"
"""The paper's: a centroid and two bits a dimension."""

_LEVEL = 3
_SAMPLE = 4096
_BATCH_ROWS = 65536
_BF16 = 2


def evaluate_compressed(
    job: EvaluateJob, before: EvaluationResult, ray_address: str, command: str
) -> dict[str, EvaluationResult]:
    """Compress a copy of the job's index, evaluate its dense scores and write them beside those of the index itself.

    The copy has files of its own for what is compressed alone; the index stays as it is.

    Args:
        job: of the index; its output folder gets the report of both, with `storage.json`.
        before: dense scores of the index itself.
        ray_address: of the cluster that compresses, where the index is of more than one part.
        command: the command line.

    Raises:
        ValueError: as `compress_index` and `evaluate_job` do.
    """
    copy = compressed_place(job.index)
    if not PassageIndex.exists(copy):
        PassageIndex.open(job.index).clone(copy)
    compress_index(CompressJob.model_validate({"index": copy, "codec": CODEC, "ray_address": ray_address}))
    own = job.model_copy(update={"index": copy, "modes": (UNCOMPRESSED,), "output": job.output / COMPRESSED})
    found = evaluate_job(own, command)[UNCOMPRESSED]
    results = {UNCOMPRESSED: before, COMPRESSED: found}
    index = PassageIndex.open(copy)
    write_text(job.output / STORAGE_FILE, storage_of(PassageIndex.open(job.index), index).model_dump_json(indent=2))
    evaluation = Evaluation(
        retriever=index.manifest.title,
        command=command,
        config={**own.model_dump(mode="json"), "retriever": index.manifest.retriever.model_dump(mode="json")},
        collection=job.collection,
        split=job.split,
        fingerprint=index.manifest.fingerprint,
        rows=len(index),
    )
    write_evaluation(job.output, evaluation, results)
    return results


def compressed_place(index: str) -> str:
    """Return where the compressed copy of an index lies: beside it."""
    return f"{index.rstrip('/')}-{CODEC}"


def storage_of(before: PassageIndex, after: PassageIndex) -> IndexStorage:
    """Return the bytes of the vectors of an index and of its compressed copy."""
    codec = after.manifest.codec
    assert codec is not None, "the copy is compressed"
    assert before.manifest.hidden_size is not None, "so the index has vectors"
    batches = before.batches(["slot_tokens"], _BATCH_ROWS)
    # Every vector has its slot word, and those are far smaller to read.
    vectors = sum(len(batch.column("slot_tokens").flatten()) for batch in batches)
    raw = vectors * before.manifest.hidden_size * _BF16
    sample_SH, _ = sample_of(before, _SAMPLE)
    data = torch.from_numpy(sample_SH).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    share = len(pa.Codec("zstd", compression_level=_LEVEL).compress(data)) / len(data)
    codes = vectors * codec.width + file_size(codec_place(after.uri, codec.digest))
    return IndexStorage(vectors=vectors, raw=raw, zstd=round(share * raw), codes=codes)
