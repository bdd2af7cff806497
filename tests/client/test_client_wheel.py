"""The wheel `diffretriever-client`, which needs neither torch nor Ray."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.client.service import FOUND
from tests.test_delivery import normal

ROOT = Path(__file__).resolve().parents[2]
SEARCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not to be loaded")
BLOCKED = {"torch", "ray", "lance", "lancedb", "pyarrow", "numpy", "pandas", "transformers", "fastapi"}
sys.meta_path.insert(0, Refuse())
import importlib
for name in sys.argv[2].split(","):
    importlib.import_module(name)
import httpx2
from diffretriever.client import SearchClient
transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=sys.argv[1]))
with SearchClient(transport=transport) as client:
    print(client.search("heat").results[0].hits[0].id)
"""


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built outside the checkout, which stays clean."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "platform").symlink_to(ROOT / "platform")
    (folder / "client").mkdir()
    for file in (ROOT / "client").iterdir():
        if file.is_file():
            (folder / "client" / file.name).write_bytes(file.read_bytes())
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "client")]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def modules_in(wheel: Path) -> list[str]:
    files = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    return sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files)


def test_the_client_searches_without_other_packages(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    included = modules_in(wheel)
    assert {"diffretriever.client", "diffretriever.integrations.langchain"} <= {*included}
    # Integrations import their library.
    modules = [name for name in included if not name.startswith("diffretriever.integrations.")]
    # Without `site`, this checkout is not on the path.
    paths = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {sysconfig.get_path('purelib')!r}]"
    command = [sys.executable, "-I", "-S", "-c", f"{paths}\n{SEARCH}", FOUND.model_dump_json(), ",".join(modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("p1\n", 0), done.stderr


def test_versions_and_requirements_match_the_library(wheel: Path) -> None:
    whole, alone = project(ROOT), project(ROOT / "client")
    for field in ("version", "license", "requires-python"):
        assert alone[field] == whole[field]
    assert {*alone["dependencies"]} <= {*whole["dependencies"]}
    assert alone["optional-dependencies"].items() <= whole["optional-dependencies"].items()
    assert {normal(each) for each in alone["dependencies"]} == {"httpx2", "pydantic", "pydantic-core"}
    assert wheel.stat().st_size < 100_000
