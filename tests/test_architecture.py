"""Imports point one way, Ray and Lance stay in their packages, and importing the package is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "platform" / "diffretriever"

# A package may import packages of lower levels. `schemas` is the lowest.
LEVELS = {
    "schemas": -1,
    "core": 0,
    "protocols": 0,
    "vectors": 1,
    "presets": 1,
    "backbones": 1,
    "client": 1,
    "testing": 2,
    "collections": 2,
    "encoders": 2,
    "budgets": 3,
    "index": 3,
    "rerank": 4,
    "search": 4,
    "evaluation": 5,
    "training": 6,
    "pipelines": 7,
    "serving": 8,
    "front": 9,
    "integrations": 10,
    "studies": 10,
    "jobs": 11,
    "serve": 11,
    "__main__": 12,
}
RAY_ALLOWED = {"pipelines", "jobs", "serve"}
LANCE_ALLOWED = {"index"}
TESTING_ALLOWED = {"testing", "reproduction", "studies"}


def modules() -> Iterator[tuple[str, Path]]:
    for folder, places in (
        (LIBRARY, None),
        (ROOT / "schemas", "schemas"),
        (ROOT / "jobs", "jobs"),
        (ROOT / "serve", "serve"),
    ):
        for file in folder.rglob("*.py"):
            inside = file.relative_to(folder).parts[0].removesuffix(".py")
            if places or inside != "__init__":
                yield places or inside, file


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def part_of(module: str) -> str | None:
    first, _, rest = module.partition(".")
    return (rest.partition(".")[0] or None) if first == "diffretriever" else None


def test_every_package_has_a_level() -> None:
    assert {place for place, _ in modules()} <= LEVELS.keys()


def test_top_folders_are_imported_as_diffretriever() -> None:
    """A wheel must not clash with another package `schemas`."""
    for name in ("schemas", "jobs", "serve"):
        assert (LIBRARY / name).resolve() == ROOT / name
    wrong = [str(file) for _, file in modules() for name in imports(file) if name.split(".")[0] in {"schemas", "serve"}]
    assert not wrong


def test_imports_point_to_lower_levels() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {place} (level {LEVELS[place]}) imports {target} (level {LEVELS[target]})"
        for place, file in modules()
        for target in map(part_of, imports(file))
        if target and target != place and LEVELS[target] >= LEVELS[place]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_jobs_import_studies() -> None:
    users = {place for place, file in modules() for name in imports(file) if part_of(name) == "studies"}
    assert users == {"jobs", "studies"}


@pytest.mark.parametrize(
    ("library", "allowed"), [("ray", RAY_ALLOWED), ("lance", LANCE_ALLOWED), ("lancedb", LANCE_ALLOWED)]
)
def test_ray_and_lance_stay_in_their_packages(library: str, allowed: set[str]) -> None:
    users = {place for place, file in modules() for name in imports(file) if name.partition(".")[0] == library}
    assert users <= allowed


def test_only_studies_import_test_models() -> None:
    users = {place for place, file in modules() if "testing" in map(part_of, imports(file))}
    assert users <= TESTING_ALLOWED


@pytest.mark.parametrize(
    "call",
    [
        "trust_remote_code=True",
        # Ray 2.60 aborts the process if the task ends at the same moment.
        "ray.cancel(",
    ],
)
def test_forbidden_calls_are_absent(call: str) -> None:
    wrong = [str(file) for _, file in modules() if call in file.read_text("utf-8")]
    assert not wrong


def test_platform_is_not_a_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists(), "it would hide the standard library's `platform`"


def test_importing_a_module_loads_no_heavy_library() -> None:
    """Modules are imported in order in one process, so a later one finds the libraries of an earlier one loaded."""
    steps = {
        "diffretriever": ["torch", "ray", "lance", "lancedb", "transformers", "pyarrow"],
        "diffretriever.core.ledger": ["torch", "ray", "lance"],
        "diffretriever.training.data.seeds": ["torch"],
        "diffretriever.training.data.training_set": ["torch"],
        "diffretriever.training.engine": ["deepspeed"],
        "diffretriever.pipelines.encode": ["ray"],
    }
    code = f"""
import sys
from importlib import import_module
for module, heavy in {steps!r}.items():
    import_module(module)
    print(module, [each for each in heavy if each in sys.modules])
"""
    path = {"PYTHONPATH": str(LIBRARY.parent)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert found.stdout.splitlines() == [f"{module} []" for module in steps]
