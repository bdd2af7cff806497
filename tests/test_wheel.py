"""The wheel has one top-level package, all its files, and the command `diffretriever`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diffretriever.__main__ import commands

ROOT = Path(__file__).resolve().parents[1]
OTHER_SCHEMAS = "SECRET = 1\n"
FOLDERS = ("platform", "schemas", "jobs", "serve")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed wheel, next to another package `schemas`."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = (source / "dist").glob("diffretriever-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "schemas.py").write_text(OTHER_SCHEMAS, "utf-8")
    return folder


def test_the_wheel_has_one_package_with_all_files(site: Path) -> None:
    names = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert names == {"diffretriever", "schemas.py"}
    folders = [ROOT / "platform" / "diffretriever", *(ROOT / name for name in FOLDERS[1:])]
    files = [
        file for folder in folders for file in folder.rglob("*") if file.is_file() and file.parent.name != "__pycache__"
    ]
    inside = [str(file.relative_to(ROOT)).removeprefix("platform/diffretriever/") for file in files]
    missing = [name for name in inside if not (site / "diffretriever" / name).is_file()]
    assert not missing
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    assert "diffretriever = diffretriever.__main__:main" in entry_points.read_text("utf-8")


@pytest.mark.usefixtures("warm")
def test_the_command_runs_jobs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "notes.csv"
    corpus.write_text("text\nPrune roses in late winter.\nFeed the sourdough every day.\n", "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{site}:{os.environ['PYTHONPATH']}"}
    for command, told in (
        (["encode", "--collection", str(corpus), "--retriever", "bm25", "--index", "notes"], "2 passages"),
        (["search", "--index", "notes", "--query", "roses"], "Prune roses"),
    ):
        # Not by its script, which an editable installation would lead to the checkout.
        code = "import sys; sys.argv[0] = 'diffretriever'; from diffretriever.__main__ import main; main()"
        done = subprocess.run(
            ["python", "-c", code, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
    where = subprocess.run(
        ["python", "-c", "import schemas, diffretriever; print(schemas.SECRET, diffretriever.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.split() == ["1", str(site / "diffretriever" / "__init__.py")]


def test_every_job_has_a_command() -> None:
    jobs = {file for file in (ROOT / "jobs").glob("*.py") if not file.name.startswith("_")}
    assert {job.resolve() for job in commands().values()} == jobs
    assert {"encode", "search", "evaluate", "compare", "train", "sweep-budgets"} <= commands().keys()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 0, "encode            Encode a collection into an index"),
        (["--version"], 0, "diffretriever 0."),
        (["encod"], 2, "unknown command encod. Did you mean 'encode'?"),
        (["serve"], 1, "error: index is required"),
        (["serve", "--help"], 0, "index: "),
        (["encode", "--helpp"], 2, "diffretriever encode: unknown flag --helpp. Did you mean '--help'?"),
    ],
)
@pytest.mark.usefixtures("warm")
def test_output_and_exit_status_of_the_command(arguments: list[str], status: int, told: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    done = subprocess.run(
        ["python", "-m", "diffretriever", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert told in done.stdout + done.stderr
