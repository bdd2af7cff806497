"""Codes and postings made by Ray are those made without it; what fails in a worker is told by the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from diffretriever.pipelines.accelerate import make_files
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.index import passage_schema
from diffretriever.search.accelerate import FILE_KINDS, Missing, accelerate, missing_files
from tests.index.test_index_verify import HIDDEN, fill, good_row

pytestmark = pytest.mark.cluster
IDS = ["a", "bb", "ccc"]
KINDS = (FILE_KINDS["codes"], FILE_KINDS["postings"])


def files(index: PassageIndex) -> dict[str, bytes]:
    folders = [kind.folder_of(index, f).path for kind in KINDS for f in index.fragments()]
    return {str(file.relative_to(f.parent.parent)): file.read_bytes() for f in folders for file in f.rglob("*.*")}


@pytest.mark.usefixtures("cluster")
def test_ray_writes_the_same_codes_and_postings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.pipelines.accelerate._FEWEST_ON_RAY", 0)
    index = fill(tmp_path, [good_row(i) for i in IDS])
    done = accelerate(AccelerateJob(index=index.uri), make_files)
    assert {kind: kept.built for kind, kept in done.files.items()} == {"codes": 3, "postings": 3}
    by_ray = files(index)
    assert sum(kept.bytes for kept in done.files.values()) == sum(map(len, by_ray.values()))
    for fragment in index.fragments():
        for kind in KINDS:
            folder = kind.folder_of(index, fragment).path
            for file in sorted(folder.rglob("*.*")):
                file.unlink()
            folder.rename(tmp_path / f"{kind.name}-{fragment.fragment_id}")
    assert [missing.kinds for missing in missing_files(index)] == [("codes", "postings")] * 3
    accelerate(AccelerateJob(index=index.uri))
    assert files(index) == by_ray

    bad = pa.Table.from_pylist([good_row("f") | {"impact_weights": [1.0, -1.0]}], schema=passage_schema(HIDDEN))
    good = pa.Table.from_pylist([good_row("g")], schema=passage_schema(HIDDEN))
    Committer(index).commit({"bad": write_block(index.uri, bad), "good": write_block(index.uri, good)}, [])
    missing = missing_files(index)
    assert missing == [Missing(each.fragment, ("codes", "postings"), 1) for each in missing]
    with pytest.raises(ValueError, match=r"above 0 and finite.*names the passages"):
        make_files(index, missing)
    assert missing_files(index)[0].kinds == ("postings",), "the codes could be made"
