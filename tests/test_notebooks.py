"""The notebooks of docs/ run from their first cell to their last, each in a kernel and a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SHOWN = {
    "search": ["Prune roses in late winter", "Bees keep their hive warm", "(8, 384)"],
    "compare": ["nDCG@10", "diffretriever-minilm", "dense+bm25"],
}
"""Texts that their outputs contain."""


def outputs(notebook: nbformat.NotebookNode) -> str:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(str(output) for cell in cells for output in cell.outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_and_prints_its_texts(
    path: Path, warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "platform"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    kernel = tmp_path / "jupyter" / "kernels" / "warm" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    command = [shutil.which("python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": command, "display_name": "warm", "language": "python"}))
    working = tmp_path / "working"
    working.mkdir()
    notebook = nbformat.read(path, as_version=4)
    # No time limit: a busy machine takes what it takes.
    resources = {"metadata": {"path": str(working)}}
    NotebookClient(notebook, timeout=None, kernel_name="warm", resources=resources).execute()
    shown = outputs(notebook)
    for text in SHOWN[path.stem]:
        assert text in shown


def test_notebooks_are_saved_with_their_outputs() -> None:
    for path in NOTEBOOKS:
        shown = outputs(nbformat.read(path, as_version=4))
        assert all(text in shown for text in SHOWN[path.stem]), f"run {path.name} and save it with its outputs"
