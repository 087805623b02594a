"""A browser without a window, which opens reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Open = Callable[..., Any]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium without a window: one that is installed, or playwright's own."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium to look at the page with: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a report. Afterwards, checks that its console has no error and that it made no
    requests.
    """
    wrong: list[str] = []
    contexts = []

    def open_report(
        folder: Path, width: int = 1280, scheme: str = "light", fragment: str = ""
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # of a busy machine
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("file:", "data:", "blob:"))
                else wrong.append(asked.url)
            ),
        )
        page.goto((folder / "report.html").as_uri() + fragment)
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert wrong == []
