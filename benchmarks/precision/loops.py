"""What the precision benchmark runs, each measurement in a process of its own.

Legend: M vectors of all passages, H hidden size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measuring import serve_child
from benchmarks.precision.__main__ import MEASURE, SPLIT
from diffretriever.front.evaluation import evaluate
from diffretriever.front.index import Index
from diffretriever.front.retriever import Retriever
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.representations import Representations
from diffretriever.schemas.index import representation_fields
from diffretriever.schemas.retriever import Dtype, is_neural

_ROWS_AT_ONCE = 1024


def measure(retriever: str, dtype: Dtype, collection: str, device: str, folder: str) -> dict[str, float]:
    """Return the measure of a collection's queries by dense score.

    The passages' vectors, float16 [M, H] in the order of the passages' ids, are left in `folder` as DTYPE.npy.
    """
    config = load_retriever(retriever)
    assert is_neural(config), "a retriever without weights has no precision"
    place = config.backbone.model_copy(update={"dtype": dtype})
    loaded = Retriever(config.model_copy(update={"backbone": place}), device=device)
    uri = str(Path(folder) / dtype)
    index = Index.create(uri, collection, retriever=loaded, on_ray=False)
    measured = evaluate(index, collection, split=SPLIT, measures=[MEASURE], modes=["dense"])
    np.save(Path(folder) / f"{dtype}.npy", _vectors(PassageIndex.open(uri)))
    return {"measure": measured.results["dense"].mean[MEASURE]}


def _vectors(index: PassageIndex) -> np.ndarray:
    """Return the vectors of all passages, float16 [M, H], in the order of their ids."""
    assert index.manifest.hidden_size is not None, "it was encoded"
    columns = ["id", *(field.name for field in representation_fields(index.manifest.hidden_size))]
    table = pa.Table.from_batches(index.batches(columns, _ROWS_AT_ONCE)).sort_by("id")
    return Representations.from_arrow(table).vectors_MH


if __name__ == "__main__":
    serve_child({"measure": measure})
