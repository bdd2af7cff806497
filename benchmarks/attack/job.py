"""`jobs/encode_beir.py` in a process whose number is known: `python -m benchmarks.attack.job FILE FLAGS`.

The number goes to FILE. The job commits after every block, so that it can die between many commits.
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
    file = sys.argv[1]
    half = Path(f"{file}.half")
    half.write_text(str(os.getpid()))
    half.rename(file)
    script = ROOT / "jobs" / "encode_beir.py"
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[:0] = [str(script.parent)]
    writer = "diffretriever.pipelines.index_writer"
    with mock.patch.multiple(writer, _COMMIT_EVERY_SECONDS=0.0, _COMMIT_SHARE=math.inf):
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
