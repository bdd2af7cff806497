"""What the pages do when something is wrong: problems, nothing found, slow answers, hostile texts, no service."""

from __future__ import annotations

from tests.browser.driving import Page
from tests.browser.stub import BEES, TIDES, Stub


def test_problem_is_shown_with_its_fix(page: Page) -> None:
    page.go("/")
    page.search("long")
    told = page.one(".problem").text
    assert "The request is not valid" in told
    assert "9 characters are too many." in told
    assert "Ask in at most 4." in told
    assert page.one(".problem").get_attribute("role") == "alert"
    assert page.one("#q").get_attribute("aria-invalid") == "true"
    assert page.all(".hit") == []
    assert page.accessibility_faults() == []
    assert all("422" in error for error in page.errors())
    page.search(TIDES)
    assert page.all(".problem") == []
    assert page.one("#q").get_attribute("aria-invalid") is None


def test_key_is_requested_and_kept_in_the_tab(page: Page, stub: Stub) -> None:
    stub.key = "open-sesame"
    page.go("/", q=TIDES)
    page.until("return document.querySelector('#key')")
    assert page.accessibility_faults() == []
    page.one("#key").send_keys("open-sesame")
    page.one(".key button").click()
    page.until("return document.querySelector('.hit')")
    page.search(BEES)
    assert page.all(".hit")
    assert "open-sesame" not in page.driver.current_url
    assert all("401" in error for error in page.errors())


def test_later_query_wins_over_a_slow_one(page: Page) -> None:
    page.go("/")
    box = page.one("#q")
    box.send_keys("slow\n")
    assert page.run("return document.body.classList.contains('busy')")
    assert page.one("#results").get_attribute("aria-busy") == "true"
    page.search(BEES)
    page.until(f"return document.title.startsWith({BEES!r})")
    page.run("return new Promise(done => setTimeout(done, 900))")
    assert page.run("return document.title").startswith(BEES)


def test_hostile_text_stays_text(page: Page) -> None:
    page.go("/", q="hostile", mode="hybrid", budget="adaptive")
    page.settled()
    assert page.texts(".hit h2")[0].startswith("<img src=x")
    page.one(".hit .why").click()
    page.explained()
    assert page.one("#drawer-title").text.startswith("<img src=x")
    assert page.all("main img") == page.all("main script") == page.all("dialog img") == []
    assert page.run("return document.title") != "broken"


def test_policy_forbids_inline_script(page: Page) -> None:
    page.go("/", q=TIDES)
    page.settled()
    policy = page.one("meta[http-equiv]").get_attribute("content") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page.run("const s = document.createElement('script'); s.textContent = 'window.bitten = 1'; document.body.append(s)")
    assert page.run("return window.bitten") is None
    assert any("Content Security Policy" in error for error in page.errors())
