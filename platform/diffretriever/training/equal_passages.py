"""False negatives by equality: candidates that are known to answer a query, besides the positive that it is given.

Passages are known by their key (`text_keys.passage_key`), 64 bits held as int64.

Legend: B queries of a part, Q queries and P candidates of the workers that share them, n keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from diffretriever.training.gather import Workers, gather_rows


def key_tensor(keys: Iterable[int]) -> Tensor:
    """Return int64 [n]: the 64 bits of each key, which is not negative."""
    return torch.from_numpy(np.fromiter(keys, np.uint64).view(np.int64))


def known_answers(answers: Sequence[Tensor], passage_keys: Tensor, workers: Workers) -> Tensor:
    """Return bool [Q, P]: which candidates answer which query, worker after worker as in `gather`.

    A query's own positive is among them.

    Args:
        answers: int64 [n] for each of this worker's queries: the keys of all passages known to answer it.
        passage_keys: int64, the keys of this worker's candidates; as many on each worker.
        workers: those whose candidates are shared.
    """
    keys_P = gather_rows(passage_keys, workers)
    own_BP = torch.stack([torch.isin(keys_P, keys.to(keys_P.device)) for keys in answers])
    return gather_rows(own_BP, workers)
