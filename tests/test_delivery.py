"""What a machine of a cluster is made from: every package is declared, one script installs them, the image has all.

No docker engine is needed: the Dockerfile is read, and with `--full` its steps run in a fresh environment, where every
module is imported, passages are encoded, and serve/config.yaml is deployed.
"""

from __future__ import annotations

import ast
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import httpx2
import pytest
import yaml

from tests.pipelines.corpora import line, write_corpus
from tests.ports import free_port, status_at

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "/opt/diffretriever"
KEPT = {"PATH", "HOME", "TMPDIR", "LANG"}
OURS = {"_entry", "diffretriever"}
ABSENT = {"llama_index": "llama-index-core"}
"""Where modules come from whose distribution is called otherwise, and which not everybody has installed."""


class Instruction(NamedTuple):
    """One of the Dockerfile."""

    name: str
    rest: str


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def declared() -> list[str]:
    """The requirements of the project and of the extras that every machine has."""
    extras = project()["optional-dependencies"]
    return [*project()["dependencies"], *extras["train"], *extras["models"]]


def declared_or_optional() -> list[str]:
    """The same, and what the code imports only where somebody has installed it."""
    extras = project()["optional-dependencies"]
    optional = ("irds", "langchain", "llamaindex", "mteb", "pyterrier")
    return [*declared(), *(requirement for name in optional for requirement in extras[name])]


def normal(requirement: str) -> str:
    """The name of a distribution, as package indexes compare it."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def imported() -> Iterator[tuple[str, Path]]:
    """Top-level modules that the code imports anywhere, by name or by a string, and where."""
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


def test_what_is_declared_is_pinned() -> None:
    pins = {normal(pin) for pin in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    assert {normal(requirement) for requirement in declared_or_optional()} <= pins


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A Python that writes down what pip and uv would install."""
    fake = tmp_path / "python"
    log = shlex.quote(str(tmp_path / "log"))
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {shlex.quote(sys.executable)} "$@"\n'
        f'echo "$@" >> {log}\ncase "$*" in *stdin) cat >> {log}.list;; esac\n'
    )
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize("build", ["cuda", "cpu"])
def test_the_script_installs_what_is_declared(build: str, recorder: Path, tmp_path: Path) -> None:
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


def test_the_script_refuses_other_builds(recorder: Path) -> None:
    done = subprocess.run([ROOT / "tools" / "install.sh", recorder, "tpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the builds of torch are cuda and cpu" in done.stderr


def test_the_image_copies_what_git_has() -> None:
    files = tracked()
    for instruction in instructions():
        if instruction.name == "COPY":
            *sources, target = instruction.rest.split()
            assert target.startswith(IMAGE)
            assert all(source in files or any(file.startswith(f"{source}/") for file in files) for source in sources)


def test_the_image_is_for_ray() -> None:
    steps = instructions()
    assert steps[0].name == "FROM"
    assert {step.name for step in steps} <= {"FROM", "ARG", "ENV", "COPY", "RUN", "USER", "WORKDIR", "CMD"}
    assert Instruction("ENV", f"PYTHONPATH={IMAGE}/platform") in steps
    assert [step.rest for step in steps if step.name == "USER"] == ["1000"]
    assert [step.rest for step in steps if "pip" in step.rest and step.name == "RUN"] == []
    assert [step.rest for step in steps if "install.sh" in step.rest and step.name == "RUN"] == [
        f'{IMAGE}/tools/install.sh /usr/local/bin/python "$TORCH"'
    ]
    version = project()["version"]
    assert f"diffretriever:{version} " in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.fixture(scope="module")
def image(full: bool, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The Dockerfile's copies and its install step, with a fresh environment as the image's Python."""
    if not full:
        pytest.skip("installs everything, which takes minutes: --full")
    return Image.build(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def index(image: Image) -> str:
    """Twelve passages, encoded in the image."""
    write_corpus(image.home / "corpus", [line(i) for i in range(12)])
    job, made = str(image.root / "jobs" / "encode_beir.py"), str(image.home / "index")
    arguments = ("--collection", str(image.home / "corpus"), "--retriever", "minilm-pooled", "--ray-address", "local")
    assert "12 passages, 12 encoded now" in image.python(job, *arguments, "--index", made)
    return made


@pytest.mark.cluster
def test_the_image_has_all_that_is_imported(image: Image) -> None:
    assert "diffretriever" not in image.python("-m", "pip", "list", "--format", "freeze")
    assert "modules and" in image.python("-c", _IMPORT_ALL, str(image.root / "jobs"))


@pytest.mark.cluster
def test_the_image_serves_by_the_config_as_it_stands(image: Image, index: str, tmp_path: Path) -> None:
    """Two shards and an encoder, with nothing changed but the index, the ports and what a replica takes."""
    config = yaml.safe_load((ROOT / "serve" / "config.yaml").read_text("utf-8"))
    (application,) = config["applications"]
    application["args"].update({"index": index, "limits.timeout_s": 3600.0})
    for part in ("ingress", "encoder", "shard"):
        application["args"][part] |= {"cpus": 0.1, "gpus": 0, "max_replicas": 1}
    port, gcs, dashboard, agent = (free_port() for _ in range(4))
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    ports = f"--port {gcs} --dashboard-port {dashboard} --dashboard-agent-listen-port {agent}"
    start = ["-m", "ray.scripts.scripts", "start", "--head", *ports.split(), "--num-cpus", "4", "--block"]
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "DIFFRETRIEVER_API_KEY": "a-key-for-the-tests",
    }
    there = image._replace(environment={**image.environment, **variables})
    with (tmp_path / "log").open("w") as log:
        head = subprocess.Popen(
            [there.interpreter, *start], cwd=there.home, env=there.environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = ("-a", f"http://127.0.0.1:{dashboard}")
        while status_at(address[1]) is None:
            assert head.poll() is None, (tmp_path / "log").read_text()
            time.sleep(1)
        there.python("-m", "ray.serve.scripts", "deploy", *address, str(tmp_path / "config.yaml"))
        while "status: RUNNING" not in (status := there.python("-m", "ray.serve.scripts", "status", *address)):
            assert "FAILED" not in status, status
        url, body = f"http://127.0.0.1:{port}/search", {"query": "passage 3", "k": 2}
        assert httpx2.post(url, json=body, timeout=3600).status_code == 401
        answer = httpx2.post(url, json=body, timeout=3600, headers={"Authorization": "Bearer a-key-for-the-tests"})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["results"][0]["hits"]) == 2
    finally:
        head.terminate()
        head.wait()


_IMPORT_ALL = """
import importlib, pkgutil, runpy, sys
from pathlib import Path
import diffretriever
names = [m.name for m in pkgutil.walk_packages(diffretriever.__path__, "diffretriever.")]
names = [name for name in names if not name.endswith("__main__") and ".integrations." not in name]
for name in names:
    assert Path(importlib.import_module(name).__file__).is_relative_to(Path(sys.argv[1]).parent), name
sys.path.insert(0, sys.argv[1])
jobs = sorted(Path(sys.argv[1]).glob("*.py"))
for job in jobs:
    runpy.run_path(str(job), run_name="job")
print(len(names), "modules and", len(jobs), "jobs")
"""


class Image(NamedTuple):
    """A folder in the place of the image's file system, and an environment in the place of its Python."""

    home: Path
    """Where commands run: not in a checkout."""
    root: Path
    """Where the code is."""
    interpreter: Path
    environment: dict[str, str]

    @classmethod
    def build(cls, home: Path) -> Image:
        """Run the steps that concern this project; those for the base system are left out."""
        root, interpreter = home / "opt", home / "env" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", home / "env"], check=True)
        environment = {
            name: value for name, value in os.environ.items() if name in KEPT or name[:4] in {"PIP_", "RAY_"}
        }
        environment.pop("RAY_ADDRESS", None)
        for name, written in instructions():
            rest = written.replace(IMAGE, str(root)).replace("/usr/local/bin/python", str(interpreter))
            if name == "COPY":
                _copy(rest, root)
            elif name in {"ARG", "ENV"}:
                variable, _, value = rest.partition("=")
                environment[variable] = value
            elif name == "RUN" and "install.sh" in rest:
                subprocess.run(["bash", "-c", rest], cwd=home, env=environment, check=True)
        return cls(home, root, interpreter, environment)

    def python(self, *arguments: str) -> str:
        """Run the image's Python, which must succeed; returns what it prints."""
        command = [str(self.interpreter), *arguments]
        done = subprocess.run(command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def _copy(rest: str, root: Path) -> None:
    *sources, target = rest.split()
    for source in sources:
        goal = Path(target) / PurePosixPath(source).name if target.endswith("/") else Path(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, goal, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / source, goal)
    assert root.is_dir()
