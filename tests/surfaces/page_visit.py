"""A visit to the page in a real browser."""

from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from tests.harness.timeouts import PATIENCE_S

PATIENCE_MS = PATIENCE_S * 1000
expect.set_options(timeout=PATIENCE_MS)


class Visit:
    """A page that was opened once, and is never loaded again."""

    def __init__(self, browser: Browser, link: str, **more: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, **more)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.bugs: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.bugs.append(str(error)))
        self.page.on(
            "console",
            lambda said: self.bugs.append(said.text) if "Content Security" in said.text else None,
        )
        self.missed: list[str] = []
        self.page.on(
            "requestfailed", lambda request: self.missed.append(f"{request.url}: {request.failure}")
        )
        self.page.on(
            "response",
            lambda got: (
                self.missed.append(f"{got.url}: {got.status}") if got.status >= 400 else None
            ),
        )
        self.page.goto(link)
        self.ready("now")
        self.page.evaluate("window.same = true")

    def ready(self, view: str) -> None:
        try:
            expect(self.page.locator("body")).to_have_attribute("data-ready", view)
        except AssertionError as error:
            error.add_note(f"it did not get {self.missed}, and said {self.bugs}")
            raise

    def view(self, name: str) -> None:
        self.page.locator(f"#tab-{name}").click()
        self.ready(name)

    def row(self, words: str) -> Locator:
        return self.page.locator(".row", has_text=words)

    def why(self, view: str, words: str) -> Locator:
        """Open the panel of a line."""
        self.view(view)
        self.row(words).click()
        expect(self.page.locator("#panel h2")).to_be_visible()
        return self.page.locator("#panel")

    def close(self) -> None:
        assert self.page.evaluate("window.same") is True, "the page was loaded again"
        assert self.bugs == []
        self.context.close()
