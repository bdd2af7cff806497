"""A real Chromium, without a window, and the pages to show it. Where there is none, these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.browser.driving import Page, open_browser
from tests.browser.stub import Stub, serving

_PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here: apt-get install chromium chromium-driver")
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
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
