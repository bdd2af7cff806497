"""The encode job with a Ray of its own, killed by SIGKILL after five commits: `dying_driver.py JOB-FLAGS`."""

from __future__ import annotations

import math
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

from diffretriever.index.writer import Committer  # noqa: E402
from diffretriever.pipelines import index_writer  # noqa: E402
from diffretriever.schemas.encode import EncodeJob  # noqa: E402


def main() -> None:
    """Run the job with commits after every block, and die."""
    commit, committed = Committer.commit, []

    def commit_and(self: Committer, *arguments: Any) -> None:
        commit(self, *arguments)
        committed.append(1)
        if len(committed) == 5:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    every_block = mock.patch.multiple(index_writer, _COMMIT_EVERY_SECONDS=0.0, _COMMIT_SHARE=math.inf)
    with mock.patch.object(Committer, "commit", commit_and), every_block:
        _entry.run(EncodeJob, encode_beir.main)


if __name__ == "__main__":
    main()
