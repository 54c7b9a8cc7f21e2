"""The page's files and its requests, over real HTTP, without a browser."""

import os
import re
import signal
from base64 import b64encode
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.http.page import routes as page_routes
from holdfast.surfaces.http.page.assets import load_assets
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import AGENT, GatewayProcess
from tests.surfaces.server_http import Served, served

ASSETS = Path(holdfast.__file__).parent / "surfaces" / "http" / "page" / "assets"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def hf(folder: Path) -> Iterator[Holdfast]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOLDFAST_GATEWAY_ROOT", str(folder / "gateways"))
        with connect(f"sqlite:{folder}/store.sqlite") as made:
            yield made


@pytest.fixture(scope="module")
def server(hf: Holdfast) -> Iterator[Served]:
    with served(hf) as made:
        yield made


def _fetched(server: Served, path: str, **params: Any) -> Any:
    answer = server.http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- files ---


def test_the_page_may_do_nothing_but_what_is_served_here(server: Served) -> None:
    page = server.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("style-src", "connect-src", "img-src")} == {"'self'"}
    # The one script in its text, which loads the others, is known by what it says.
    (begin,) = re.findall(r"<script[^>]*>(.*?)</script>", page.text, re.DOTALL)
    assert begin == (ASSETS / "begin.js").read_text()
    assert (
        policy["script-src"]
        == f"'self' 'sha256-{b64encode(sha256(begin.encode()).digest()).decode()}'"
    )
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'",) * 3
    assert page.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_page_is_served_and_known_again(server: Served) -> None:
    named = set(re.findall(r'"/assets/([\w.]+)"', (ASSETS / "page.html").read_text()))
    for script in ASSETS.glob("*.js"):
        named |= set(re.findall(r'(?:from |import\()"(?:\.|/assets)/([\w.]+)"', script.read_text()))
    assert named | {"page.html"} == {path.name for path in ASSETS.iterdir()} == set(load_assets())
    for name in named:
        answer = server.http.get(f"/assets/{name}")
        assert (answer.status_code, answer.content) == (200, load_assets()[name].content)
        assert "content-security-policy" in answer.headers
        again = server.http.get(
            f"/assets/{name}", headers={"If-None-Match": answer.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name", ["nosuch.js", "..%2froutes.py", "%2e%2e%2f__init__.py", "routes.py"]
)
def test_no_name_becomes_a_path(server: Served, name: str) -> None:
    assert server.http.get(f"/assets/{name}").status_code in (401, 404)


def test_no_script_makes_markup_of_data_or_knows_a_foreign_address() -> None:
    for path in ASSETS.iterdir():
        text = path.read_text()
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert found == [], path.name
        # A name of the SVG standard looks like an address, and is none.
        assert re.findall(r"//[a-z]+\.[a-z]+", text.replace("//www.w3.org/2000/svg", "")) == [], (
            path.name
        )
        assert not re.search(r"\sstyle=|\son\w+=\"", text), path.name


@pytest.mark.parametrize(
    "path", ["/v1/overview", "/v1/timeline", "/v1/overview/jobs", "/v1/overview/journal"]
)
def test_nobody_reads_without_a_token(server: Served, path: str) -> None:
    assert httpx.get(f"{server.url}{path}", timeout=PATIENCE_S).status_code == 401


# --- what it asks for ---


def test_lists_go_on_where_they_stopped(server: Served, hf: Holdfast) -> None:
    for number in range(5):
        hf.jobs.register_job(f"number {number}", agent="a", agent_session="b")
        hf.agents.publish(f"agent-{number}", backend="codex_headless", tool="t", manifest_path="/m")
        hf.locks.acquire(f"lock-{number}", by="c")
    first = _fetched(server, "/v1/overview/jobs", limit=3, words="number")
    before = {"before_arrival": first["next"][0], "before_id": first["next"][1]}
    rest = _fetched(server, "/v1/overview/jobs", limit=3, words="number", **before)
    assert [line["prompt"][-1] for line in first["lines"] + rest["lines"]] == [
        "4",
        "3",
        "2",
        "1",
        "0",
    ]
    assert rest["next"] is None
    assert first["counts"]["pending"] >= 5
    agents = _fetched(server, "/v1/overview/agents", limit=3)
    after = {"after_name": agents["next"][0], "after_id": agents["next"][1]}
    assert [
        line["name"][-1] for line in _fetched(server, "/v1/overview/agents", **after)["lines"]
    ] == ["3", "4"]
    locks = _fetched(server, "/v1/overview/locks", limit=2)
    assert (
        _fetched(server, "/v1/overview/locks", after=locks["next"])["lines"][0]["name"] == "lock-2"
    )
    assert _fetched(server, "/v1/overview/locks", words="lock-4")["lines"][0]["by"] == "c"
    assert len(_fetched(server, "/v1/overview/journal", limit=4)["entries"]) == 4
    assert _fetched(server, "/v1/timeline")["stretches"][0]["resource"].startswith("lock-")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/overview?more=1", 422),
        ("/v1/overview/jobs?limit=0", 422),
        ("/v1/overview/jobs?limit=10001", 422),
        ("/v1/overview/jobs?status=nosuch", 422),
        ("/v1/overview/journal?limit=1001", 422),
        ("/v1/overview/why?kind=nosuch", 422),
        ("/v1/overview/why", 422),
        ("/v1/overview/why?kind=agent&name=nosuch", 404),
        ("/v1/overview/why?kind=workflow&name=nosuch", 404),
        ("/v1/overview/jobs/nosuchid", 404),
        ("/v1/overview/gateways/nosuch", 404),
    ],
)
def test_what_makes_no_sense_is_refused(server: Served, path: str, status: int) -> None:
    answer = server.http.get(path)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


@pytest.mark.parametrize("kind", ["lock", "swap"])
def test_why_is_answered_of_what_is_not_there_too(server: Served, kind: str) -> None:
    assert _fetched(server, "/v1/overview/why", kind=kind, name="free")["tone"] == "idle"


def test_a_job_is_shown_with_its_log_and_without_its_key(server: Served, hf: Holdfast) -> None:
    job = hf.jobs.register_job("sort it", agent="a", agent_session="c")
    hf.jobs.pick_pending("c")
    hf.job_events.publish(job.job_id, "progress", detail="half", data={"api_key": "hunter2"})
    response = server.http.get(f"/v1/overview/jobs/{job.job_id}")
    assert [line["event"] for line in response.json()["log"]] == [
        "registered",
        "status_changed",
        "published",
    ]
    assert response.json()["job"]["progress"][0]["detail"] == "half"
    assert job.auth_token is not None
    assert job.auth_token not in response.text and "hunter2" not in response.text


@pytest.mark.prove
def test_a_gateway_that_hangs_holds_up_nobody_twice(
    server: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GatewayProcess(folder) as gate:
        gate.start()
        with monkeypatch.context() as patient:
            # One that answers has the time for it that a busy machine takes.
            patient.setattr(page_routes, "PAGE_GATEWAY_S", PATIENCE_S)
            assert _fetched(server, "/v1/overview")["gateways"][0]["state"] == "open"
            token = gate.client.folder.token.read_text().strip()
            picture = server.http.get(f"/v1/overview/gateways/{AGENT}")
            assert picture.json()["why"]["state"] == "open" and token not in picture.text
        assert gate.process is not None
        os.kill(gate.process.pid, signal.SIGSTOP)
        os.waitpid(gate.process.pid, os.WUNTRACED)
        waited: list[int] = []

        def wait(asked: list[Future[Any]], *, timeout: float) -> None:
            waited.append(len(asked))
            futures.wait(asked, timeout=timeout)

        monkeypatch.setattr(page_routes, "wait", wait)
        until(lambda: _fetched(server, "/v1/overview")["gateways"][0]["state"] == "does not answer")
        assert _fetched(server, "/v1/overview")["gateways"][0]["state"] == "does not answer"
        assert waited[-2:] == [1, 0], "it was waited for again"
        os.kill(gate.process.pid, signal.SIGCONT)
    assert _fetched(server, "/v1/overview")["gateways"][0]["agent"] == AGENT
