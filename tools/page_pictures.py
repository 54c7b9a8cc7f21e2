"""Take the pictures of the page: `make docs`. A real browser before a real server, with real
processes behind it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

from tests.surfaces.browser import chromium, running
from tests.surfaces.page_stage import PageStage, crowd, stage

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
BYTES_MAX = 200_000
_LOOK_MS = 20_000
"""How long the crowd works before the picture is taken, so that the timeline has something to show.
"""


def opened(
    browser: Browser, made: PageStage, *, width: int, height: int, dark: bool = False
) -> Page:
    """The page in a window of its own."""
    scheme: Literal["dark", "light"] = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
        locale="en-GB",
    )
    page = context.new_page()
    page.goto(made.link())
    page.wait_for_selector("body[data-ready=now]")
    return page


def take(page: Page, name: str) -> None:
    """Save a picture of the page."""
    path = PICTURES / name
    page.mouse.move(0, 0)
    page.screenshot(path=path)
    if path.stat().st_size > BYTES_MAX:
        raise SystemExit(
            f"{path} has {path.stat().st_size} bytes, more than {BYTES_MAX}: take less"
        )


def main() -> None:
    """Take all pictures."""
    if chromium() is None:
        sys.stderr.write("no chromium: the pictures of the page are left as they are\n")
        return
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as made, running() as browser:
        made.serve()
        crowd(made)
        wide = opened(browser, made, width=1280, height=900)
        wide.wait_for_timeout(_LOOK_MS)
        wide.wait_for_selector(".held")
        take(wide, "page-now.png")
        dark = opened(browser, made, width=1280, height=760, dark=True)
        dark.keyboard.press("3")
        dark.locator(".row", has_text="router-1").click()
        dark.wait_for_selector("#panel .actions")
        take(dark, "page-why.png")
        narrow = opened(browser, made, width=390, height=760)
        narrow.keyboard.press("4")
        narrow.wait_for_selector(".row")
        take(narrow, "page-narrow.png")


if __name__ == "__main__":
    main()
