"""Benchmarks. Each is a module to run from the root of the repository: `python -m benchmarks.search --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What is measured is this checkout's platform, whichever is installed.
sys.path.insert(0, str(ROOT / "platform"))
