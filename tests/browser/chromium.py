"""A real browser: Debian's chromium and its driver, by apt-get if missing, driven by selenium.

The browser runs without a window. Nothing else is downloaded: selenium's own manager is not asked.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

from tests.services.process import Unavailable, run, wait_for

#: How long the page may take to show something.
WAIT_S = 30.0
#: Of saved pictures.
_COLOURS = 160
_PROGRAMS = ("chromium", "chromedriver")


def install() -> None:
    """Let apt-get fetch the browser, as root. Raises: Unavailable."""
    if all(map(shutil.which, _PROGRAMS)):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable("chromium is not installed, and only root can install it")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    run(["apt-get", "-q", "update"], why="apt-get cannot update")
    packages = ["chromium", "chromium-driver", "fonts-dejavu-core"]
    command = ["apt-get", "-qy", "install", "--no-install-recommends", *packages]
    run(command, why="apt-get cannot install chromium")


class Chromium:
    """A browser with one window."""

    def __init__(self) -> None:
        """Start it. Raises: Unavailable."""
        try:
            from selenium.webdriver import Chrome, ChromeOptions
            from selenium.webdriver.chrome.service import Service
        except ModuleNotFoundError:
            raise Unavailable("selenium is not installed: pip install --group browser") from None
        install()
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument("--hide-scrollbars")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._driver: Any = Chrome(options, Service(shutil.which("chromedriver")))

    def close(self) -> None:
        """End the browser."""
        self._driver.quit()

    def show(
        self, link: str, *, width: int = 1400, height: int = 1000, colours: str = "light"
    ) -> None:
        """Open a page in a window of that size."""
        # A new document, also where only the part behind # differs.
        self._driver.get("about:blank")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self._driver.get(link)

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page; returns its result."""
        return self._driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the visible text of the first element; empty: there is none."""
        # Elements of SVG have no innerText.
        script = "const found = document.querySelector(arguments[0]);"
        script += " return found?.innerText ?? found?.textContent ?? ''"
        found = self.run(script, selector)
        return str(found)

    def await_text(self, selector: str, text: str) -> None:
        """Wait until an element's text contains `text`."""
        try:
            wait_for(lambda: text in self.text(selector), f"{text!r} in {selector}", WAIT_S)
        except TimeoutError as error:
            raise AssertionError(f"{error}; there stands {self.text(selector)!r}") from None

    def click(self, selector: str) -> None:
        """Click an element, also one of SVG."""
        script = "document.querySelector(arguments[0])"
        self.run(f"{script}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))", selector)

    def press(self, *keys: str) -> None:
        """Press keys, by selenium's names or as characters, where the focus is."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self._driver).send_keys(getattr(Keys, key, key)).perform()

    def complaints(self) -> list[str]:
        """Return what the browser has complained of: errors of scripts, refused requests."""
        logged = self._driver.get_log("browser")
        return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]

    def save(self, path: Path) -> None:
        """Save what the window shows as PNG, in few colours: for documents, which stay small."""
        from PIL import Image

        picture = Image.open(io.BytesIO(self._driver.get_screenshot_as_png())).convert("RGB")
        # The most frequent colours are those of the page; the others come from smooth edges.
        counted: list[Any] = picture.getcolors(1 << 24) or []
        kept = sorted(counted, reverse=True)[:_COLOURS]
        palette = Image.new("P", (1, 1))
        palette.putpalette([part for _, colour in kept for part in colour])
        picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
