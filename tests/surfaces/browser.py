"""A real browser for tests: the machine's own Chromium, driven by playwright, which downloads
nothing.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.harness.requirements import skip_or_fail

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    # As root there is no sandbox, and a container's shared memory is small.
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    # Nothing leaves this machine.
    *(
        "--no-proxy-server",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ),
]


def chromium() -> str | None:
    """The program, if there is one."""
    return next((path for name in _PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def running() -> "Iterator[Browser]":
    """A browser for the block; without one a skip by name, which is a failure in CI."""
    program = chromium()
    if program is None:
        skip_or_fail("no chromium: install it with apt, or run `make test` as root")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_FLAGS, headless=True)
        try:
            yield browser
        finally:
            browser.close()
