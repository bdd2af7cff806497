"""A job as its command line runs it, in a process whose number is known: `... benchmarks.attack.job FILE JOB FLAGS`.

The number goes to FILE. Encoding commits after every block, so that it can die between many commits.
"""

from __future__ import annotations

import math
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

from benchmarks import ROOT


def main() -> None:
    """Run the job."""
    file, name = sys.argv[1:3]
    half = Path(f"{file}.half")
    half.write_text(str(os.getpid()))
    half.rename(file)
    script = ROOT / "jobs" / f"{name}.py"
    sys.argv = [str(script), *sys.argv[3:]]
    sys.path[:0] = [str(script.parent)]
    if name != "encode_beir":
        runpy.run_path(str(script), run_name="__main__")
        return
    writer = "diffretriever.pipelines.index_writer"
    with mock.patch.multiple(writer, _COMMIT_EVERY_SECONDS=0.0, _COMMIT_SHARE=math.inf):
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
