"""README.md and docs/: every link leads somewhere, the tutorial is true, and the site is whole."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffretriever
from diffretriever.__main__ import commands

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """What can follow `#`, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the project"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_guide_is_found_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)[)#]", page.read_text("utf-8"))
        waiting += [
            found for link in links if (found := (page.parent / link).resolve()) not in reached and found.exists()
        ]
    assert set(PAGES) <= reached


def test_the_tutorial_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "tutorial.md")
    assert doctest.testfile(page, module_relative=False, optionflags=doctest.ELLIPSIS) == (0, 14)


def test_messages_of_the_troubleshooting_page_are_printed_somewhere() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    messages = [message for row in re.findall(r"^\| (`.*?) \|", table, re.M) for message in re.findall(r"`(.*?)`", row)]
    code = "".join(
        file.read_text("utf-8")
        for folder in ("platform", "schemas", "jobs", "serve")
        for file in (ROOT / folder).rglob("*.py")
    )
    assert len(messages) > 10
    assert [message for message in messages if message not in code] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, which stops at a warning."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "tools.site", "--output", str(folder)], cwd=ROOT, check=True)
    return folder


def test_the_site_has_every_public_name_and_command(site: Path) -> None:
    page = (site / "docs" / "api.html").read_text("utf-8")
    names = [*diffretriever.__all__, "Index.create", "client.SearchClient.search"]
    assert [name for name in names if f'id="diffretriever.{name}"' not in page] == []
    reference = (site / "build" / "reference" / "commands.html").read_text("utf-8")
    assert [name for name in commands() if f">{name}<" not in reference] == []
    assert (site / "searchindex.js").is_file()
