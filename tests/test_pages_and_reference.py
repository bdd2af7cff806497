"""Links of README.md and docs/ work, the tutorial prints its output, and the site is complete."""

from __future__ import annotations

import ast
import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import diffretriever
from diffretriever.__main__ import commands
from diffretriever.pipelines.compress import compress_index
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.compress import CompressJob
from diffretriever.search.accelerate import accelerate
from tools.site import FILES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

VARIABLE = re.compile(r"(AWS|DIFFRETRIEVER|NVIDIA|OMP|ONEDNN|RAY)_[A-Z0-9_]+")
INTERNAL = {"RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"}
"""Variables that Ray sets in a submitted job, or a server for Ray."""


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def sources() -> list[Path]:
    return [file for folder in ("platform", "schemas", "jobs", "serve") for file in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the project"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_page_is_linked_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)[)#]", page.read_text("utf-8"))
        waiting += [
            linked for link in links if (linked := (page.parent / link).resolve()) not in reached and linked.exists()
        ]
    assert set(PAGES) <= reached


def test_the_tutorial_prints_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "tutorial.md")
    assert doctest.testfile(page, module_relative=False, optionflags=doctest.ELLIPSIS) == (0, 14)


def test_messages_of_the_troubleshooting_page_are_in_the_code() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    messages = [message for row in re.findall(r"^\| (`.*?) \|", table, re.M) for message in re.findall(r"`(.*?)`", row)]
    code = "".join(file.read_text("utf-8") for file in sources())
    assert len(messages) > 10
    assert [message for message in messages if message not in code] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of `make docs`, which fails on a warning."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "tools.site", "--output", str(folder)], cwd=ROOT, check=True)
    return folder


def test_the_site_has_every_public_name_and_command(site: Path) -> None:
    page = (site / "docs" / "api.html").read_text("utf-8")
    names = [*diffretriever.__all__, "Index.create", "client.SearchClient.search"]
    assert [name for name in names if f'id="diffretriever.{name}"' not in page] == []
    reference = (site / "build" / "reference" / "commands.html").read_text("utf-8")
    assert [name for name in commands() if f">{name}<" not in reference] == []
    assert str(ROOT) not in reference
    assert "<td><p></p></td>\n</tr>" not in (site / "build" / "reference" / "configuration.html").read_text("utf-8")
    assert (site / "searchindex.js").is_file()


def test_the_metrics_page_has_every_metric_of_the_dashboard(site: Path) -> None:
    page = (site / "build" / "reference" / "metrics.html").read_text("utf-8")
    shown = "".join((ROOT / name).read_text("utf-8") for name in ("serve/grafana.json", "docs/serving.md"))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"ray_diffretriever_\w+", shown)}
    assert [name for name in names if name not in page] == []


def test_the_index_format_page_has_every_file_of_an_index(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "plain", tmp_path / "compressed"
    (tmp_path / "corpus.jsonl").write_text('{"_id": "roses", "text": "Prune roses in late winter."}\n')
    diffretriever.Index.create(plain, tmp_path / "corpus.jsonl")
    shutil.copytree(plain, compressed)
    accelerate(AccelerateJob(index=str(plain), candidates=True))
    compress_index(CompressJob(index=str(compressed), codec="product2"))
    accelerate(AccelerateJob(index=str(compressed)))
    patterns = {re.compile(re.sub("KEY|DIGEST", r"\\w+", path).replace("-N", r"-\d+")): path for path in FILES}
    matched = set()
    for folder in (plain, compressed):
        for file in (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()):
            paths = {path for pattern, path in patterns.items() if pattern.match(file)}
            assert paths, f"{file} is not on the page"
            matched |= paths
    assert set(FILES) - matched == {"quarantine.jsonl"}


def test_the_environment_page_has_every_variable_that_the_code_reads() -> None:
    page = (ROOT / "docs" / "environment.md").read_text("utf-8")
    nodes = [node for file in sources() for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    constants = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    read = {constant for constant in constants if VARIABLE.fullmatch(constant)}
    listed = set(re.findall(r"`([A-Z0-9_]+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert read - listed == INTERNAL
    assert {name for name in listed - read if name.startswith("DIFFRETRIEVER_")} == set()
