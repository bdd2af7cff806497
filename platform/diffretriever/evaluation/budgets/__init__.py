"""Reports on budgets from sweeps on disk: the paper's analysis section, and what a fitted selector gains.

Import the leaf modules; the package alone loads no matplotlib.
"""

from __future__ import annotations
