"""The encode job with a driver that dies by SIGKILL at an exact moment: `dying_driver.py VICTIM MOMENT JOB-FLAGS`.

The victim `machine` takes the whole process group along, Ray's processes included.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "jobs"), str(ROOT / "platform"), str(ROOT)]

import _entry  # noqa: E402  (found through the path above)
import encode_beir  # noqa: E402

from diffretriever.index.table import PassageIndex  # noqa: E402
from diffretriever.index.writer import Committer  # noqa: E402
from diffretriever.schemas.encode import EncodeJob  # noqa: E402

COMMITS = {"after the first commit": 1, "in the middle": 5}


def main(victim: str, moment: str) -> None:
    """Run the job with commits after every block, and die."""
    create, commit, committed = PassageIndex.create, Committer.commit, []

    def die() -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL) if victim == "machine" else os.kill(os.getpid(), signal.SIGKILL)

    def create_and(*arguments: Any) -> PassageIndex:
        index = create(*arguments)
        if moment == "once the index is made":
            die()
        return index

    def commit_and(self: Committer, *arguments: Any) -> None:
        if moment == "before the first commit":
            die()
        commit(self, *arguments)
        committed.append(1)
        if len(committed) == COMMITS.get(moment):
            die()

    with (
        mock.patch.object(PassageIndex, "create", create_and),
        mock.patch.object(Committer, "commit", commit_and),
        mock.patch("diffretriever.pipelines.index_writer.CommitClock.due", return_value=True),
    ):
        _entry.run(EncodeJob, encode_beir.main)


if __name__ == "__main__":
    victim_and_moment = sys.argv[1:3]
    del sys.argv[1:3]
    main(*victim_and_moment)
