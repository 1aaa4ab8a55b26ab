"""Starts a headless Chromium for tests, which may run in a sandbox without network, home folder or shared memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service


@contextmanager
def chromium(folder: Path, width: int = 1400, height: int = 1000) -> Iterator[webdriver.Chrome]:
    """Yields a driver of the machine's own Chromium.

    Args:
        folder: where it may keep what it writes.
        width, height: of the window.

    Raises:
        RuntimeError: there is no Chromium or no driver; the message says what to install.
    """
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise RuntimeError("the browser test needs chromium and chromedriver: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    switches = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
    for switch in (*switches, f"--window-size={width},{height}", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(driver, env=os.environ | {"HOME": str(folder)})
    browser = webdriver.Chrome(options=options, service=service)
    try:
        # The page of a new tab has messages of its own.
        browser.get("about:blank")
        yield browser
    finally:
        browser.quit()
