"""Programs in the warm Python end as under the interpreter, and see what they would see there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm")

SHOW = """
import json, os, sys
loaded = [name for name in ("torch", "ray", "diffretriever") if name in sys.modules]
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["MARK"], sys.path[0], __name__, sys.stdin.read(), loaded]))
sys.exit(7)
"""
HANG = "import time; print('up', flush=True); time.sleep(3600)"


def test_a_file_sees_its_arguments_and_surroundings(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOW)
    command = ["python", "program.py", "a b", "--flag"]
    environment = {**os.environ, "MARK": "here"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input="text", capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    arguments, folder, mark, first, name, given, loaded = json.loads(done.stdout)
    assert (arguments, mark, name, given) == (["a b", "--flag"], "here", "__main__", "text")
    assert Path(folder) == Path(first) == tmp_path.resolve()
    assert loaded == ["torch", "ray"], "it begins warm, with nothing of ours"


def test_modules_and_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise KeyError('lost')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["python", "-m", "broken"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError: 'lost'" in done.stderr
    assert subprocess.run(["python", "-c", "print(3)"], capture_output=True, check=True).stdout == b"3\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_program_is_dead(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    with subprocess.Popen(["python", "hang.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        assert program.wait() == -number
        # The stream ends when nobody is left who could write to it.
        assert not program.stdout.read()


def test_a_worker_of_ray_ends_with_its_parent(tmp_path: Path) -> None:
    """As Ray's workers do where their raylet is their parent, which that of a fork is not."""
    (tmp_path / "default_worker.py").write_text(HANG)
    command = ["bash", "-c", "python default_worker.py & wait"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout is not None
        assert raylet.stdout.readline() == "up\n"
        raylet.kill()
        assert not raylet.stdout.read()
