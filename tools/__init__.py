"""Programs beside the package. Run from the root of the repository: `python -m tools.random_paper --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# This checkout's platform, whichever is installed.
sys.path.insert(0, str(ROOT / "platform"))
