"""Chromium as the tests use it: going to pages, typing, waiting for what the page shows, looking at its console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

DESKTOP, PHONE = (1280, 900), (320, 640)
_PATIENCE_S = 300
"""Only a page that never shows what it should takes so long."""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


class Page:
    """The one tab."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._url = ""

    def begin(self, url: str) -> None:
        """Forget what was, and look at the server at `url` from a desk in daylight."""
        self._url = url
        self.leave()
        self.driver.get_log("browser")
        self.size(DESKTOP)
        self.media(scheme="light")

    def leave(self) -> None:
        """Go where nothing is drawn or asked for: a page goes on with both after its test."""
        self.driver.get("about:blank")

    def size(self, size: tuple[int, int]) -> None:
        told = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", told)

    def media(self, scheme: str, motion: str = "reduce") -> None:
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def go(self, path: str, **asked: object) -> None:
        """Go to a page and wait until it can be used."""
        self.driver.get(f"{self._url}{path}{'?' + urlencode(asked) if asked else ''}")
        self.until("return document.querySelector('[type=radio]') !== null || document.querySelector('.problem')")

    def search(self, query: str) -> None:
        """Type a query and wait for its answer, whatever that is."""
        box = self.one("#q")
        box.clear()
        box.send_keys(query, Keys.ENTER)
        self.settled()

    def settled(self) -> None:
        self.until("return !document.body.classList.contains('busy') && document.title !== ''")

    def explained(self) -> None:
        """Wait until the drawer is open and drawn."""
        self.until("return document.querySelector('dialog[open] .picture') !== null")
        self.until("return document.getAnimations().every(each => each.playState === 'finished')")

    def until(self, script: str) -> Any:
        """Wait until the script returns something true, and return that."""
        return WebDriverWait(self.driver, _PATIENCE_S, 0.05).until(lambda driver: driver.execute_script(script))

    def run(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self, script: str = "id") -> Any:
        """Return a property of the element that has the focus."""
        return self.run(f"return document.activeElement.{script}")

    def errors(self) -> list[str]:
        """Return what the console has complained of since the last look, broken security policies included."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def accessibility_faults(self) -> list[str]:
        """Return what axe finds wrong with the page as it stands: rule, place, and what to do."""
        if not self.run("return 'axe' in window"):
            self.run(resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
        told = self.driver.execute_async_script(
            "axe.run({resultTypes: ['violations']}).then(r => arguments[arguments.length - 1](JSON.stringify(r)))"
        )
        return [
            f"{fault['id']}: {node['html'][:120]} {node['failureSummary']}"
            for fault in json.loads(told)["violations"]
            for node in fault["nodes"]
        ]


@contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    """Start Chromium with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_script_timeout(_PATIENCE_S)
        yield Page(driver)
    finally:
        driver.quit()
