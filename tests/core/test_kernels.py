"""Functions that numba compiles, wherever the library is installed."""

from __future__ import annotations

from typing import Any

from diffretriever.core.kernels import kernel


def test_kernels_run_if_numba_cannot_cache() -> None:
    installed: dict[str, Any] = {}
    exec(compile("def doubled(number):\n    return 2 * number\n", "/read-only/vectors/kernels.py", "exec"), installed)
    assert kernel()(installed["doubled"])(21) == 42
