"""Every imported package is declared and pinned, the script installs it, and the image copies all files.

No docker engine is needed: the Dockerfile is read.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "/opt/diffretriever"
OURS = {"_entry", "diffretriever"}
ABSENT = {"llama_index": "llama-index-core", "triton": "torch"}
"""Optional modules → their distributions."""


class Instruction(NamedTuple):
    """An instruction of the Dockerfile."""

    name: str
    rest: str


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def declared() -> list[str]:
    """Return the requirements of the project and of the extras that every machine has."""
    extras = project()["optional-dependencies"]
    return [*project()["dependencies"], *extras["train"], *extras["models"]]


def declared_or_optional() -> list[str]:
    """Return these and the requirements of optional integrations."""
    extras = project()["optional-dependencies"]
    optional = ("irds", "langchain", "llamaindex", "mteb", "pyterrier")
    return [*declared(), *(requirement for name in optional for requirement in extras[name])]


def normal(requirement: str) -> str:
    """Return the normalised name of a distribution."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def imported() -> Iterator[tuple[str, Path]]:
    """Yield each imported top-level module, by name or by a string, with its file."""
    for folder in ("platform", "schemas", "jobs", "serve"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                for name in names_in(node):
                    yield name.split(".")[0], file


def names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module" and node.args:
        return [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []  # type: ignore[list-item]
    return []


def instructions() -> list[Instruction]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [Instruction(*line.split(maxsplit=1)) for line in lines]


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    return set(listed.stdout.splitlines())


def test_every_imported_package_is_declared() -> None:
    minilm = (ROOT / "requirements-minilm.txt").read_text("utf-8").splitlines()[-1]
    known = {normal(requirement) for requirement in [*declared_or_optional(), minilm]}
    distributions = packages_distributions()
    missing = {
        f"{module} in {file.relative_to(ROOT)}"
        for module, file in imported()
        if module not in sys.stdlib_module_names | OURS
        and not known & {normal(name) for name in distributions.get(module, [ABSENT.get(module, module)])}
    }
    assert not missing, f"add to the dependencies in pyproject.toml: {sorted(missing)}"


def test_every_declared_package_is_pinned() -> None:
    pins = {normal(pin) for pin in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    assert {normal(requirement) for requirement in declared_or_optional()} <= pins


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A stand-in for Python that logs the commands of pip and uv."""
    fake = tmp_path / "python"
    log = shlex.quote(str(tmp_path / "log"))
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {shlex.quote(sys.executable)} "$@"\n'
        f'echo "$@" >> {log}\ncase "$*" in *stdin) cat >> {log}.list;; esac\n'
    )
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize("build", ["cuda", "cpu"])
def test_the_script_installs_the_declared_packages(build: str, recorder: Path, tmp_path: Path) -> None:
    subprocess.run([ROOT / "tools" / "install.sh", recorder, build], cwd=tmp_path, check=True)
    commands = [each for each in (tmp_path / "log").read_text().splitlines() if " pip config " not in f" {each}"]
    with_pip, first, second, third, compiling = (each.replace(f" --python {recorder}", "") for each in commands)
    assert with_pip.startswith("-m pip ")
    assert with_pip.endswith(" uv")
    assert all(command.startswith("-m uv pip install ") for command in (first, second, third))
    assert first.endswith(" torch")
    assert ("download.pytorch.org/whl/cpu" in first) == (build == "cpu")
    assert all("constraints.txt" in command for command in (with_pip, first, second))
    assert (tmp_path / "log.list").read_text().splitlines() == declared()
    assert "--no-deps --require-hashes" in third
    assert compiling.startswith("-m compileall "), "no bytecode: read-only environments compile at every start"
    assert all(f"/{folder}" in compiling for folder in ("site-packages", "platform", "schemas", "jobs", "serve"))


def test_the_image_copies_tracked_files() -> None:
    files = tracked()
    for instruction in instructions():
        if instruction.name == "COPY":
            *sources, target = instruction.rest.split()
            assert target.startswith(IMAGE)
            assert all(source in files or any(file.startswith(f"{source}/") for file in files) for source in sources)
