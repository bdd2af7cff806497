"""Every command of the README and of the guides is executed here, in order, in a copy of what git tracks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from diffretriever.schemas.serve_config import ServeConfig
from tests.ports import free_port, status_at

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("search", "explain", "maintain", "fast-search", "filters", "research", "training", "cluster")
PAGES = ("README.md", *(f"docs/{name}.md" for name in GUIDES))
"""As a newcomer reads them; each goes on from those before."""

# `make test` tells what it runs that it is inside make, which would change what `make -n` prints.
OTHERS = {"RAY_ADDRESS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}

pytestmark = pytest.mark.cluster


def commands() -> list[str]:
    return [command for block in blocks_of("sh") if block != CORPUS for command in block.strip().splitlines()]


def blocks_of(language: str) -> list[str]:
    pages = [(ROOT / page).read_text("utf-8") for page in PAGES]
    return [block for page in pages for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)]


CORPUS = next(block for block in blocks_of("sh") if "my-corpus/corpus.jsonl" in block)
"""The commands that make the corpus of all pages, which must come before the first that reads it."""


def shown() -> dict[str, str]:
    """Return the commands of docs/search.md that it shows the output of, and that output."""
    page = (ROOT / "docs" / "search.md").read_text("utf-8")
    found = re.search(
        r"```sh\n([^`]+)```\n\nThe search and the evaluation print:\n\n```text\n(.*?)```", page, re.DOTALL
    )
    assert found is not None
    return dict(zip(found[1].splitlines()[1:], found[2].split("\n\n"), strict=True))


def two_decimals(text: str) -> str:
    """Processors differ in the precision that they compute in."""
    return re.sub(r"(\.\d\d)\d\d", r"\1", text)


ON_RAY = ("train",)
"""Jobs that start a Ray where none runs, however little they have to do."""

LOCAL = [c for c in commands() if not c.startswith(("make ", "ray ", "export "))]
SUBMITTED = [c for c in commands() if c.startswith("ray job submit")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a stranger has after cloning, with the corpus that docs/search.md makes."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("platform", "schemas", "jobs", "serve"):
        # With what Python and numba compiled, as after the first command.
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    subprocess.run(["bash", "-ec", CORPUS], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def environment(warm: None) -> Iterator[dict[str, str]]:
    """Where `python` is the warm one, and the project is found in the checkout alone."""
    tools = str(Path(sys.executable).parent)
    # No job finds a cluster of other tests.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        path, python_path = f"{os.environ['PATH']}:{tools}", f"platform:{os.environ['PYTHONPATH']}"
        own = {"PATH": path, "PYTHONPATH": python_path, "RAY_AUTH_MODE": "token"}
        own["RAY_TMPDIR"] = place
        yield {**{k: v for k, v in os.environ.items() if k not in OTHERS}, **own}


class Cluster(NamedTuple):
    """Environments of processes that use a running cluster."""

    submitting: dict[str, str]
    """For `ray job submit`."""
    joining: dict[str, str]
    """For jobs that are run as they are."""


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`ray start --head` on ports of its own; ended by a signal, as `ray stop` would end every Ray there is.

    Only who has its address finds it.
    """
    port, dashboard, agent = free_port(), free_port(), free_port()
    # Without a port of its own the agent that runs jobs would stay silent beside another Ray on this machine.
    ports = f"--port {port} --dashboard-port {dashboard} --dashboard-agent-listen-port {agent}"
    flags = f"{ports} --num-cpus 2 --disable-usage-stats --block"
    log = tmp_path_factory.mktemp("ray") / "log"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        own = {**environment, "RAY_TMPDIR": place}
        with log.open("w") as stream:
            head = subprocess.Popen(
                ["bash", "-c", f"exec ray start --head {flags}"],
                env=own,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # The agent that runs jobs; the job server answers before.
        while status_at(f"http://127.0.0.1:{agent}/api/local_raylet_healthz") != 200:
            assert head.poll() is None, log.read_text()
            time.sleep(0.1)
        submitting = {**own, "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}"}
        yield Cluster(submitting, {**own, "RAY_ADDRESS": f"127.0.0.1:{port}"})
        # Told to end, it would wait for its workers for half a minute.
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_pages_have_the_commands() -> None:
    assert len(LOCAL) >= 20
    assert len(SUBMITTED) == 2
    first = next(block for block in blocks_of("sh") if "my-corpus" in block)
    assert first == CORPUS, "a page reads my-corpus before one says how to make it"
    assert set(shown()) <= set(LOCAL)
    assert {c for c in commands() if c.startswith("make ")} == {"make demo", "make test"}


def test_make_demo_is_the_demo_job(checkout: Path, environment: dict[str, str]) -> None:
    """`make demo` on a small collection, which needs no Ray; the built-in one takes minutes."""
    recipe = run("make --no-print-directory -n demo VENV=.none", ROOT, environment).stdout.splitlines()[-1]
    assert recipe == ".none/bin/python jobs/demo.py --output demo"
    done = run(f"{recipe.replace('.none/bin/', '')} --collection my-corpus", checkout, environment)
    assert done.returncode == 0, done.stderr
    for system in ("BM25", "MiniLM mean-pooled dense", "DiffRetriever MiniLM hybrid"):
        assert re.search(rf"^{system} +\d\.\d{{4}}", done.stdout, re.MULTILINE), done.stdout
    assert (checkout / "demo" / "comparison.md").is_file()


@pytest.mark.parametrize("command", LOCAL)
def test_local_command(
    command: str, checkout: Path, environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """Those on Ray find one running, which takes less time than starting one."""
    if any(f"jobs/{job}.py" in command for job in ON_RAY):
        cluster: Cluster = request.getfixturevalue("cluster")
        environment = cluster.joining
    done = run(command, checkout, environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout
    assert two_decimals(shown().get(command, "")) in two_decimals(done.stdout)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            0,
            r"1 passage by dense\+0\.25bm25 scores for 'when do I cut .*\n.*\n      Prune roses in late",
        ),
        (1, r"1 bees Bees {'year': 2024}\n2 bread"),
        (2, r"torch.Size\(\[1, 1, 64\]\) torch.Size\(\[1, 1, \d+\]\)"),
    ],
)
def test_python_example(place: int, said: str, checkout: Path, environment: dict[str, str]) -> None:
    examples = blocks_of("python")
    assert len(examples) == 3
    (checkout / "example.py").write_text(examples[place])
    done = run("python example.py", checkout, environment)
    assert done.returncode == 0, done.stderr
    assert re.match(said, done.stdout), done.stdout


def test_the_servers_commands(checkout: Path, environment: dict[str, str]) -> None:
    """docs/serving.md: the server, then what it is asked."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    start, *others = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    asked = [command for command in others if command.startswith("curl ")]
    assert len(asked) == 3
    for command in {*others} - {*asked}:
        settings = command.removeprefix("python -m serve ").split()
        ServeConfig.from_arguments(dict(each.split("=") for each in settings))
    port = free_port()
    place = f"localhost:{port}"
    with (checkout / "server.log").open("w") as log:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {start.replace('port=8001', f'port={port}')}"],
            cwd=checkout,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while "serving on" not in (told := (checkout / "server.log").read_text()):
            assert server.poll() is None, told
            time.sleep(0.1)
        answers = [run(f"{each} -sS".replace("localhost:8001", place), checkout, environment) for each in asked]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.kill()
    for answer in answers:
        assert answer.returncode == 0, answer.stderr
        assert "urn:diffretriever:problem" not in answer.stdout, answer.stdout
    (found,) = json.loads(answers[0].stdout)["results"]
    assert found["hits"][0]["id"] == "roses"


def test_submitted_commands(checkout: Path, cluster: Cluster) -> None:
    for command in SUBMITTED:
        done = run(command, checkout, cluster.submitting)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    metrics = json.loads((checkout / "results" / "cluster" / "metrics.json").read_text("utf-8"))
    assert set(metrics["measures"]) == {"sparse"}


def test_a_submitted_encoder_runs_in_the_clusters_workers(checkout: Path, cluster: Cluster) -> None:
    """And what cannot run there says so. One submission of three commands, as each starts three processes more."""
    index = checkout / "indexes" / "submitted"
    command = f"python jobs/encode_beir.py --collection {checkout}/my-corpus --retriever minilm-pooled --index {index}"
    commands = [command, f"{command} --encoders 50", command.replace(str(index), "relative")]
    (checkout / "three.sh").write_text("".join(f"{each} 2>&1; echo ended with $?.\n" for each in commands))
    submitted = run("ray job submit --working-dir . -- bash three.sh", checkout, cluster.submitting)
    assert submitted.returncode == 0, f"{submitted.stdout}\n{submitted.stderr}"
    done, refused, lost = re.findall(r"(.*?)ended with (\d+)\.", submitted.stdout, re.DOTALL)
    assert done[1] == "0", done[0]
    assert refused[1] != "0"
    assert "no room for 50 encoders" in refused[0]
    assert lost[1] != "0"
    assert "give an absolute path or a URI" in lost[0]
