"""benchmarks/house.py: rooms, arrows, circles, and files that work crosses; of a made-up house and of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import ROOT
from benchmarks.house import Crossed, crossed_files, source_figures

FILES = {
    "schemas/base.py": "X = 1\n",
    "platform/lib/__init__.py": "",
    "platform/lib/a.py": "from lib.far import c\nfrom diffretriever.schemas.base import X\n",
    "platform/lib/b.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib.d import Y\nelse:\n    import lib.a\n"
    ),
    "platform/lib/d.py": "def late():\n    import lib.b\nY = 2\n",
    "platform/lib/far/__init__.py": "",
    "platform/lib/far/c.py": "import numpy\nfrom lib.far import e\n",
    "platform/lib/far/e.py": "def f():\n    from lib.far.c import numpy\n",
    "jobs/_entry.py": "",
    "jobs/run.py": "from _entry import main\nfrom lib.a import X\n",
    "tests/other.py": "import lib.a\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_the_source(house: Path) -> None:
    figures, circles = source_figures(house)
    assert figures["rooms"] == 4
    assert figures["files"] == len(FILES) - 1
    assert figures["lines"] == sum(text.count("\n") for name, text in FILES.items() if not name.startswith("tests"))
    assert figures["lines of a file, most"] == 5
    assert figures["arrows between rooms"] == 3, "lib to far, lib to schemas, jobs to lib"
    far = ["platform/lib/far/c.py", "platform/lib/far/e.py"]
    assert circles["circles of files"] == [far], "an import within a function counts"
    assert circles["circles of files, with imports for type checkers"] == [
        ["platform/lib/b.py", "platform/lib/d.py"],
        far,
    ]
    assert figures["circles of rooms"] == 0


@pytest.fixture
def crossed(house: Path) -> Iterator[Crossed]:
    with Crossed(house) as crossed:
        yield crossed


def test_files_are_crossed_where_a_function_runs_the_second_time(house: Path, crossed: Crossed) -> None:
    modules: dict[str, ModuleType] = {}
    for name in ("own", "threaded", "first_only", "imported"):
        file = house / "platform" / f"{name}.py"
        file.write_text("class C:\n    x = 1\n\ndef f():\n    return [i for i in range(2)]\n", "utf-8")
        modules[name] = ModuleType(name)
        exec(compile(file.read_text("utf-8"), str(file), "exec"), modules[name].__dict__)
    calls: list[int] = []

    def work() -> None:
        modules["own"].f()
        thread = threading.Thread(target=modules["threaded"].f)
        thread.start()
        thread.join()
        if not calls:
            modules["first_only"].f()
        imported = house / "platform" / "imported.py"
        exec(compile(imported.read_text("utf-8"), str(imported), "exec"), {})
        calls.append(1)

    assert crossed.by(work) == ["platform/own.py", "platform/threaded.py"]
    assert len(calls) == 2


def test_our_house_has_no_circles() -> None:
    _, circles = source_figures(ROOT)
    assert not circles["circles of files"]
    assert not circles["circles of rooms"]


def test_what_crosses_our_house_crosses_few_files() -> None:
    """A file more on one of these ways is a decision: change the number with it."""
    crossed = crossed_files(ROOT)
    assert {what: len(files) for what, files in crossed.items()} == {
        "a passage": 25,
        "an exact dense query": 5,
        "a request": 34,
    }
