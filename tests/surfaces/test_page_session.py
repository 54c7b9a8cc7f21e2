"""The session of the page, in a real browser: who sees its secret, how long it lasts, and how it
ends.
"""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import APIResponse, Browser, Error, Page, Route, expect

from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces import browser as browsers
from tests.surfaces.page_stage import PageStage, stage
from tests.surfaces.page_visit import PATIENCE_MS, Visit

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.running() as made:
        yield made


@pytest.fixture
def made(tmp_path: Path) -> Iterator[PageStage]:
    with stage(tmp_path) as world:
        yield world


class Neighbour:
    """Another user's server on another port of this machine, which keeps every byte that it is
    sent.
    """

    def __init__(
        self, port: int = 0, says: bytes = b"<!doctype html><title>neighbour</title><img src=/more>"
    ) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._says = says
        self.port = self._listening.getsockname()[1]
        self.heads: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        # The page breaks requests off.
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65536)
                if not piece:
                    return
                head += piece
            # Before the answer, which the page may show at once.
            self.heads.append(head)
            body = self._says
            client.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            client.sendall(body)

    def got(self, path: str, at: str) -> bool:
        return any(
            head.startswith(f"GET {path} ".encode()) and f"Host: {at}:".encode() in head
            for head in self.heads
        )

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    made = Neighbour()
    yield made
    made.close()


def _replayed(port: int, head: bytes) -> bytes:
    """Ask the server for a change with all that somebody was sent, and an Origin of the server's
    own.
    """
    kept = [
        line
        for line in head.split(b"\r\n")[1:]
        if line and not re.match(rb"(?i)(host|origin|connection|content-|sec-)", line)
    ]
    body = json.dumps({"name": "router-1", "why": "stolen"}).encode()
    lines = [
        b"POST /v1/locks/kick HTTP/1.1",
        b"Host: 127.0.0.1:%d" % port,
        b"Origin: http://127.0.0.1:%d" % port,
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
        *kept,
    ]
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        return client.makefile("rb").readline()


def _is_reloaded(page: Page) -> bool:
    # Not by `wait_for_function`: its second look is refused by the page's Content-Security-Policy.
    try:
        return page.evaluate("window.before") is None
    except Error:
        # It is being reloaded at this moment.
        return False


def _secret(page: Page) -> str:
    return str(page.evaluate("sessionStorage.session"))


def test_no_server_on_another_port_gets_what_lets_it_act(
    browser: Browser, made: PageStage, neighbour: Neighbour
) -> None:
    """The cookie of the session went to every port of 127.0.0.1."""
    visit = Visit(browser, made.serve())
    made.hf.locks.acquire("router-1", by="operator", ttl_s=600)
    tab = visit.context.new_page()
    for host in ("127.0.0.1", "localhost"):
        tab.goto(f"http://{host}:{neighbour.port}/visited")
    # From the page itself, as a link in it would.
    visit.page.evaluate(f"void (location.href = 'http://127.0.0.1:{neighbour.port}/followed')")
    visit.page.wait_for_url("**/followed")
    for path, host in (
        ("/visited", "127.0.0.1"),
        ("/visited", "localhost"),
        ("/followed", "127.0.0.1"),
        ("/more", "localhost"),
    ):
        until(partial(neighbour.got, path, host))
    for head in neighbour.heads:
        assert _replayed(made.port, head) == b"HTTP/1.1 401 Unauthorized\r\n", head
        assert not re.search(rb"(?i)\r\n(cookie|authorization):", head), head
        assert str(made.port).encode() not in head, "its Referer tells where the page is"
    assert visit.context.cookies() == []
    assert [one.by for one in made.hf.locks.status("router-1").holds] == ["operator"]
    visit.page.go_back()
    visit.ready("now")
    secret = _secret(visit.page)
    assert len(secret) > 80 and not any(secret.encode() in head for head in neighbour.heads)
    assert (
        httpx.get(
            f"http://127.0.0.1:{made.port}/v1/locks", headers=_bearer(secret), timeout=PATIENCE_S
        ).status_code
        == 200
    )
    visit.context.close()


def test_the_code_of_a_link_reaches_no_server_in_a_url_and_stays_in_no_address(
    browser: Browser, made: PageStage, neighbour: Neighbour
) -> None:
    link = made.serve()
    code = link.rpartition("/")[2]
    assert len(code) == 32
    visit = Visit(browser, link)
    assert code not in visit.page.url and visit.page.url.endswith("/#/now")
    tab = visit.context.new_page()
    tab.goto(link.replace(str(made.port), str(neighbour.port)))
    until(lambda: neighbour.got("/", "127.0.0.1"))
    assert not any(code.encode() in head for head in neighbour.heads)
    visit.close()


def test_a_reload_and_a_second_tab_keep_the_session_and_another_browser_is_refused(
    browser: Browser, made: PageStage
) -> None:
    link = made.serve()
    visit = Visit(browser, link)
    visit.page.reload()
    visit.ready("now")
    tab = visit.context.new_page()
    tab.goto(f"http://127.0.0.1:{made.port}/#/jobs")
    expect(tab.locator("body")).to_have_attribute("data-ready", "jobs")
    assert _secret(tab) == _secret(visit.page)
    made.job("news")
    for page in (tab, visit.page):
        expect(page.locator("#link")).to_contain_text("live")
    expect(tab.locator(".row", has_text="news")).to_be_visible()
    with browser.new_context() as other:
        page = other.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"http://127.0.0.1:{made.port}/")
        expect(page.locator("#away")).to_contain_text(
            "Run `holdfast serve --link` on the machine that serves"
        )
        page.goto(link)
        expect(page.locator("#away")).to_contain_text(
            "this link was used before, or is too old: `holdfast serve --link` prints"
        )
        assert page.evaluate("sessionStorage.session") is None
        # A tab that waits is let in by the link that another one opens.
        another = other.new_page()
        another.goto(made.link())
        expect(page.locator("#link")).to_contain_text("live")
    visit.context.close()


def test_a_log_out_ends_the_session_in_every_tab_and_for_the_next_server(
    browser: Browser, made: PageStage
) -> None:
    visit = Visit(browser, made.serve())
    secret, url = _secret(visit.page), f"http://127.0.0.1:{made.port}"
    made.job("a secret plan")
    tab = visit.context.new_page()
    tab.goto(f"{url}/#/jobs")
    expect(tab.locator(".row", has_text="a secret plan")).to_be_visible()
    for page in (visit.page, tab):
        page.evaluate("window.before = true")
    visit.page.get_by_role("button", name="Log out").click()
    for page in (visit.page, tab):
        # It is reloaded, with nothing in it.
        until(partial(_is_reloaded, page))
        expect(page.locator("#away")).to_contain_text("holdfast serve --link")
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [
            0,
            0,
            "",
        ]
        assert "a secret plan" not in page.content()
    assert (
        httpx.get(f"{url}/v1/locks", headers=_bearer(secret), timeout=PATIENCE_S).status_code == 401
    )
    made.kill_server()
    made.serve()
    assert (
        httpx.get(f"{url}/v1/locks", headers=_bearer(secret), timeout=PATIENCE_S).status_code == 401
    )
    (ended,) = made.folder.rglob(f"ended-{made.port}.json")
    assert ended.stat().st_mode & 0o777 == 0o600 and secret.partition(".")[0] in ended.read_text()
    assert secret.rpartition(".")[2] not in ended.read_text()
    visit.context.close()


def test_a_log_out_whose_answer_comes_late_clears_every_tab(
    browser: Browser, made: PageStage
) -> None:
    """Both tabs are refused before they hear of it. They showed what they had, and the other one
    was never told.
    """
    visit = Visit(browser, made.serve())
    made.job("a secret plan")
    tab = visit.context.new_page()
    tab.goto(f"http://127.0.0.1:{made.port}/#/jobs")
    expect(tab.locator(".row", has_text="a secret plan")).to_be_visible()
    answers: list[tuple[Route, APIResponse]] = []
    visit.page.route("**/v1/sessions/end", lambda route: answers.append((route, route.fetch())))
    for page in (visit.page, tab):
        page.evaluate("window.before = true")
    visit.page.get_by_role("button", name="Log out").click()
    for page in (visit.page, tab):
        expect(page.locator("#away")).to_contain_text("holdfast serve --link")
    [(route, answer)] = answers
    route.fulfill(response=answer)
    for page in (visit.page, tab):
        until(partial(_is_reloaded, page))
        expect(page.locator("#away")).to_contain_text("holdfast serve --link")
        assert "a secret plan" not in page.content()
    visit.context.close()


def test_a_program_that_takes_the_port_of_a_dead_server_is_not_shown_the_secret(
    browser: Browser, made: PageStage
) -> None:
    """The page asked again by itself, with the secret, to any server."""
    visit = Visit(browser, made.serve())
    secret = _secret(visit.page)
    made.kill_server()
    thief = Neighbour(made.port)
    try:
        visit.page.locator("#tab-jobs").click()
        until(lambda: len(thief.heads) >= 5)
    finally:
        thief.close()
    assert not any(re.search(rb"(?i)\r\n(cookie|authorization):", head) for head in thief.heads), (
        thief.heads
    )
    assert not any(secret.rpartition(".")[2].encode() in head for head in thief.heads)
    made.serve()
    made.job("news")
    expect(visit.page.locator("#link")).to_contain_text("live")
    expect(visit.row("news")).to_be_visible()
    # A server that pretends to prove it learns nothing more.
    made.kill_server()
    thief = Neighbour(made.port, b'{"proof": "%s"}' % (b"0" * 64))
    try:
        expect(visit.page.locator("#away")).to_contain_text("holdfast serve --link")
    finally:
        thief.close()
    assert thief.heads and not any(
        re.search(rb"(?i)\r\nauthorization:", head) for head in thief.heads
    )
    assert visit.page.evaluate("sessionStorage.session") is None
    visit.context.close()


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
