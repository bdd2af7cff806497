from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diffretriever.search.sparse.kernels import BLOCK_ROWS
from diffretriever.search.sparse.segment import DTYPES, Impacts, PostingsSegment
from tests.search.product import Text, impacts, slices

TEXTS: list[Text] = [{2: 0.5, 7: 3.0}, {}, {2: 1.5}, {0: 0.1, 2: 1.0, 9: 2.0}]


def test_arrays_by_hand(tmp_path: Path) -> None:
    segment = PostingsSegment.build(tmp_path / "s", [impacts(TEXTS)], 10)
    assert (segment.passages, segment.vocab_size) == (4, 10)
    assert segment.terms_D.tolist() == [0, 2, 7, 9]
    assert segment.starts_DB.tolist() == [[0, 1], [1, 4], [4, 5], [5, 6]]
    assert segment.rows_P.tolist() == [3, 0, 2, 3, 0, 3]
    assert segment.weights_P.tolist() == np.array([0.1, 0.5, 1.5, 1, 3, 2], np.float32).tolist()


def test_batches_make_no_difference(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 3, BLOCK_ROWS + 700)
    total = int(lengths.sum())
    first_of_two = np.concatenate([[False], np.repeat(lengths, lengths)[:-1] == 2])
    ids = np.where(first_of_two, 50, 0) + rng.integers(0, 50, total)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # Of two impacts of a passage the second has the larger id.
    second = np.zeros(total, dtype=bool)
    second[offsets[1:][lengths == 2] - 1] = True
    ids = (np.where(second, 50, 0) + rng.integers(0, 50, total)).astype(np.int32)
    passages: Impacts = (ids, rng.gamma(2, 1, total).astype(np.float32), offsets)
    PostingsSegment.build(tmp_path / "one", [passages], 100)
    sizes = [1, 0, BLOCK_ROWS - 2, 300, 401]
    PostingsSegment.build(tmp_path / "many", slices(passages, sizes), 100)
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(["listing.json", *(f"{name}.bin" for name in DTYPES)])
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_opens_again_without_reading_everything(tmp_path: Path) -> None:
    built = PostingsSegment.build(tmp_path / "s", [impacts(TEXTS)], 10)
    opened = PostingsSegment.open(str(tmp_path / "s"))
    assert opened.weights_P.tolist() == built.weights_P.tolist()
    assert not opened.weights_P.flags.writeable


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def batches() -> Iterator[Impacts]:
        yield impacts(TEXTS)
        raise RuntimeError("the reader died")

    with pytest.raises(RuntimeError, match="the reader died"):
        PostingsSegment.build(tmp_path / "s", batches(), 10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ids", "weights", "offsets", "message"),
    [
        ([3, 10], [1, 1], [0, 2], "token id 10 is outside a vocabulary of 10"),
        ([-1, 3], [1, 1], [0, 2], "token id -1"),
        ([3, 2**32 + 4], [1, 1], [0, 2], "token id 4294967300"),
        ([3, 4], [1, 0], [0, 2], "above 0 and finite"),
        ([3, 4], [1, np.inf], [0, 2], "above 0 and finite"),
        ([3, 4], [np.nan, 1], [0, 2], "above 0 and finite"),
        ([3, 2, 5, 4], [1, 1, 1, 1], [0, 1, 1, 2, 4], "passage number 7 do not ascend"),
        ([3, 3], [1, 1], [0, 2], "passage number 4 do not ascend"),
    ],
)
def test_impacts_that_are_refused(
    ids: list[int], weights: list[float], offsets: list[int], message: str, tmp_path: Path
) -> None:
    wrong = (np.array(ids), np.array(weights), np.array(offsets))
    with pytest.raises(ValueError, match=message):
        PostingsSegment.build(tmp_path / "s", [impacts(TEXTS), wrong], 10)
    assert not list(tmp_path.iterdir())


def test_segments_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"listing.json cannot be read"):
        PostingsSegment.open(tmp_path)
    folder = tmp_path / "s"
    segment = PostingsSegment.build(folder, [impacts(TEXTS)], 10)
    for wrong in (segment.starts_DB[:, ::-1], segment.starts_DB + np.uint32(1)):
        wrong.tofile(folder / "starts.bin")
        with pytest.raises(ValueError, match="do not fit together"):
            PostingsSegment.open(folder)
