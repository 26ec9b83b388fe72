"""Opens pages in a headless Chromium, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")

needs_browser = pytest.mark.skipif(
    (CHROMIUM is None or find_spec("playwright") is None)
    and "PLACER_REQUIRE_BROWSER" not in os.environ,
    reason="needs playwright and chromium",
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield a browser that makes no requests of its own."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "PLACER_REQUIRE_BROWSER is set: install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-background-networking"],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, file: Path, **settings: object) -> Iterator[Page]:
    """Yield an opened page. At the end, check that it made no request and reported no
    problem.

    Args:
        settings: of the browser's context, such as `color_scheme="dark"`.
    """
    with browser.new_context(offline=True, **settings) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(60_000)
        problems: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.locator("html[data-ready]").wait_for(state="attached")
        yield page
        assert problems == []
        assert requests == [file.as_uri()]
