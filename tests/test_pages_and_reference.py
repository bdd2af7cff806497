"""README.md and docs/: every link leads somewhere. The API reference has every public name."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import diffretriever
from tools.reference import MODULES, write

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


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


def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    assert all(find_spec(module) for module in MODULES)
    write(tmp_path, ["diffretriever", "diffretriever.client"])
    page = (tmp_path / "diffretriever.html").read_text("utf-8")
    assert [name for name in diffretriever.__all__ if f'id="{name}"' not in page] == []
    assert 'id="Index.create"' in page
    assert 'id="SearchClient.search"' in (tmp_path / "diffretriever" / "client.html").read_text("utf-8")
