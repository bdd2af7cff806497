"""OpenMP's threads sleep while they wait for one another, in all processes of the tests.

By default they spin: beside other busy processes a job of two threads then takes three times the processor for nothing.
The library reads this when it loads, so it is set before anything that loads torch is imported.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
