"""Debian's Chromium, driven by Playwright; and what a page may not do while a test looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
_INSTALL_S = 300


def chromium() -> str:
    """Return the path of a Chromium; one is installed where there is none and we are root on Debian.

    Raises:
        RuntimeError: there is none, and it can't be installed.
    """
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError("there is no Chromium: install it (on Debian: apt-get install chromium)")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    for command in (install, ["apt-get", "update", "-q"], install):  # new machines have no lists, older ones stale ones
        done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSTALL_S)
        if done.returncode == 0 and (found := shutil.which(NAMES[0])):
            return found
    raise RuntimeError(f"chromium could not be installed: {done.stderr.decode(errors='replace')[-500:]}")


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser for the length of the block."""
    async with async_playwright() as playwright:
        # Root can't have Chromium's sandbox; what it looks at here is our own page.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=chromium(), args=options)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """A page, and what went wrong in it: errors and warnings on the console (CSP violations are such), requests elsewhere."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:image/")):
            self.faults.append(f"request: {url}")

    async def ready(self, hash_: str = "") -> Page:
        """Open the dashboard and wait until it has asked the host once."""
        await self.page.goto(f"{self.url}/ui/{hash_}")
        await self.page.wait_for_selector("body[data-ready]")
        return self.page


@asynccontextmanager
async def watched(browser: Browser, url: str, **context: Any) -> AsyncIterator[Watched]:
    """A page of its own; at the end nothing may have gone wrong in it."""
    made = await browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **context})
    try:
        watch = Watched(await made.new_page(), url)
        yield watch
        assert watch.faults == []
    finally:
        await made.close()
