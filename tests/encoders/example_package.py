"""The example package of an encoder, installed as by pip."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "random-indexing"
METHOD = "diffretriever-random-indexing:static"


def install(folder: Path, *, module: bool = True, group: str = "diffretriever.encoders") -> Path:
    """Lay the example into a folder for `sys.path`, perhaps without its module or under another group."""
    folder.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    (about / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
    (points,) = project["entry-points"].values()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    if module:
        shutil.copy2(EXAMPLE / "random_indexing.py", folder)
    return folder
