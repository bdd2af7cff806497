"""The search page without a mouse, on a phone, by night, for screen readers, and for people whom motion troubles."""

from __future__ import annotations

from selenium.webdriver import Keys

from tests.browser.driving import PHONE, Page
from tests.browser.stub import BEES, TIDES, recorded, titles


def test_keyboard_is_enough(page: Page) -> None:
    page.go("/", q=TIDES)
    page.settled()
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.focused() == "q"
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    second = recorded(TIDES).results[0].hits[1].title
    assert page.focused("textContent") == f"Why this passage: {second}"
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.press(Keys.ENTER)
    page.explained()
    assert page.one("#drawer-title").text == second
    page.press(Keys.ESCAPE)
    page.until("return !document.querySelector('dialog[open]')")
    assert page.focused("textContent") == f"Why this passage: {second}"
    page.press(Keys.ESCAPE)
    assert page.focused() == "q"
    page.press(BEES, Keys.ENTER)
    page.until(f"return document.title.startsWith({BEES!r})")
    assert page.texts(".hit h2")[0] == titles(recorded(BEES))[0]


def test_narrow_phone_has_no_sideways_scrolling(page: Page) -> None:
    page.size(PHONE)
    page.go("/", q=TIDES, mode="hybrid", budget=2)
    page.settled()
    wide = "return [document.documentElement.scrollWidth, innerWidth]"
    assert page.run(wide) == [320, 320]
    page.one(".hit .why").click()
    page.explained()
    assert page.run("const d = document.getElementById('drawer'); return [d.scrollWidth, d.clientWidth]") == [320, 320]
    assert page.run("return document.querySelector('.picture').getBoundingClientRect().right <= 320")
    small = page.run(
        "return [...document.querySelectorAll('button')].filter(b => b.offsetHeight && b.offsetHeight < 36).length"
    )
    assert small == 0


def test_accessible_by_day_and_by_night(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.media(scheme)
        page.go("/", q=TIDES, mode="hybrid", budget=2)
        page.settled()
        assert page.accessibility_faults() == []
        page.one(".hit .why").click()
        page.explained()
        assert page.accessibility_faults() == []
        page.press(Keys.ESCAPE)
        page.go("/")
        assert page.accessibility_faults() == []
