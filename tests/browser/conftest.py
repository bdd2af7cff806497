"""A real Chromium, without a window, and the pages to show it. Where there is none, these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driving import Page, open_browser
from tests.browser.stub import Stub, serving

_PROGRAMS = ("chromium", "chromedriver")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", metavar="DIR", help="keep the browser tests' pictures there; else in pytest's tmp"
    )


@pytest.fixture(scope="session")
def screenshots(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # pytest knows the option only where this folder is on its command line.
    chosen = request.config.getoption("--screenshots", default=None)
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, screenshots: Path) -> Iterator[Page]:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here: apt-get install chromium chromium-driver")
    with open_browser(tmp_path_factory.mktemp("profile"), screenshots) as page:
        yield page


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as server:
        yield server


@pytest.fixture
def page(browser: Page, stub: Stub) -> Iterator[Page]:
    """The browser at the stub; a test must leave no error on its console, or say that it expects one."""
    browser.begin(stub.url)
    yield browser
    errors = browser.errors()
    browser.leave()
    assert errors == []
