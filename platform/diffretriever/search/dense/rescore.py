"""The last step of every coded search: exact fp32 scores of a few passages, from the table's own vectors.

Legend: C chosen passages of one query, U passages chosen by any query of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffretriever.encoders.representations import Representations, read_vectors
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.exact import exact_scores
from diffretriever.scoring.topk import TopK

_ROWS_AT_ONCE = 4096


def rescore(
    index: PassageIndex,
    queries: Representations,
    chosen: Sequence[np.ndarray],
    best: TopK,
) -> None:
    """Score, for each query, the passages at its positions `chosen` (int64 [C], table order) into `best`.

    A passage that several queries chose is read once.
    """
    vectors_MH = queries.vectors_MH.astype(np.float32)
    wanted_U = np.unique(np.concatenate(chosen)) if len(chosen) else np.empty(0, np.int64)
    for start in range(0, len(wanted_U), _ROWS_AT_ONCE):
        part_U = wanted_U[start : start + _ROWS_AT_ONCE]
        table = index.take(part_U, ["id", "reps"])
        stored_NH, offsets = read_vectors(table)
        vectors_NH = stored_NH.astype(np.float32)
        ids = np.array(table.column("id").to_pylist(), dtype=object)
        for query, positions_C in enumerate(chosen):
            rows_C = np.flatnonzero(np.isin(part_U, positions_C, assume_unique=True))
            if len(rows_C):
                own = slice(queries.offsets[query], queries.offsets[query + 1])
                scores_C = exact_scores(vectors_MH[own], vectors_NH, offsets, rows_C)
                best.add_for(query, scores_C, ids[rows_C])
