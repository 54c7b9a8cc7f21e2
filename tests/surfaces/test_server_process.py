"""`holdfast serve` as a process: its files, its address, its end, and what it had accepted by
then.
"""

import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove


@pytest.fixture(params=["sqlite", "postgres"])
def say(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=store_url(request, tmp_path))


class Server:
    """A server that runs, and what it said when it began."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.announced: dict[str, Any] = json.loads(process.stdout.readline())
        token = Path(self.announced["token_file"]).read_text().strip()
        self.http = httpx.Client(
            base_url=self.announced["url"],
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(say: CommandLine, *words: str) -> Iterator[Server]:
    process = say.start("serve", "--json", *words)
    try:
        server = Server(process)
        yield server
        server.http.close()
    finally:
        process.kill()
        process.communicate()


def test_a_store_in_a_folder_whose_name_is_not_utf_8_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "odd-\udcff"
    folder.mkdir()
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{folder}/store.sqlite")
    process = say.start("serve", "--json", "--port", "0")
    try:
        assert process.stdout is not None
        assert "odd-\\udcff/" in json.loads(process.stdout.readline())["token_file"]
    finally:
        process.kill()
        process.communicate()


def test_it_serves_with_its_own_token_and_ends_on_a_signal(
    say: CommandLine, tmp_path: Path
) -> None:
    with serving(say, "--port", "0") as server:
        token_file = Path(server.announced["token_file"])
        assert (
            stat.S_IMODE(token_file.stat().st_mode) == 0o600
            and stat.S_IMODE(token_file.parent.stat().st_mode) == 0o700
        )
        assert server.http.get("/ready").json()["status"] == "ready"
        assert _entered(server.announced["link"]) == 200
        again = json.loads(say("serve", "--link", "--json").out)["link"]
        assert again != server.announced["link"] and _entered(again) == 200
        token_file = Path(server.announced["token_file"])
        token = token_file.read_text()
        token_file.write_text("x" * 43)
        assert "began with another token" in say("serve", "--link").err
        token_file.unlink()
        assert "token is gone" in say("serve", "--link").err
        token_file.write_text(token)
        token_file.chmod(0o600)
        job = server.http.post("/v1/jobs", json={"prompt": "x", "agent_session": "s"}).json()[
            "job_id"
        ]
        assert server.end() == 0
        port = server.announced["url"].rpartition(":")[2]
    gone = say("serve", "--link")
    assert (gone.status, gone.out) == (6, "") and "holdfast serve" in gone.err
    with serving(say, "--port", port) as server:
        # The same token and port, and all that was there.
        assert Path(server.announced["token_file"]) == token_file
        assert server.http.get(f"/v1/jobs/{job}").json()["prompt"] == "x"
        assert server.end(signal.SIGINT) == 0


def _entered(link: str) -> int:
    """Use a link as the page does."""
    url, _, code = link.partition("/#/enter/")
    return httpx.post(f"{url}/v1/sessions", json={"code": code}, timeout=PATIENCE_S).status_code


def test_a_second_server_names_the_one_that_has_the_port(say: CommandLine, tmp_path: Path) -> None:
    with serving(say, "--port", "0") as server:
        port = server.announced["url"].rpartition(":")[2]
        second = say("serve", "--port", port)
        assert (
            second.status == 4
            and f"process {server.process.pid}" in second.err
            and "--link" in second.err
        )
        other = say("serve", "--port", port, "--store", f"sqlite:{tmp_path}/other.sqlite")
        assert other.status == 6 and "of another store" in other.err
        server.end(signal.SIGKILL)
        # Who was killed is no server any more.
        assert say("serve", "--link").status == 6
    with serving(say, "--port", port) as server:
        assert server.http.get("/ready").status_code == 200


def test_an_ended_process_is_not_mistaken_for_a_live_one(tmp_path: Path) -> None:
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    with serving(say, "--port", "0") as first:
        with serving(say, "--port", "0") as second:
            assert (
                len([line for line in say("doctor").out.splitlines() if "it answers at" in line])
                == 2
            )
            assert second.end() == 0
        assert first.announced["url"].rpartition(":")[2] in say("serve", "--link").out
        assert "it answers at" in say("doctor").out
        assert first.end() == 0


def test_it_reaps_jobs_without_any_request(say: CommandLine) -> None:
    worker = subprocess.Popen(["sleep", "600"])
    with serving(say, "--port", "0") as server, connect(say.environment["HOLDFAST_STORE"]) as hf:
        for job_id, limit_s in (("killed", 600), ("late", 0.05)):
            hf.jobs.register_job(
                "x", agent="a", agent_session=job_id, job_id=job_id, idle_timeout_sec=limit_s
            )
        hf.jobs.pick_pending("killed", holder=hf.processes.of(worker.pid))
        hf.jobs.pick_pending("late")
        worker.kill()
        worker.wait()
        deadline_s = time.monotonic() + PATIENCE_S
        with hf.store.listen([JOURNAL_TOPIC]) as ears:
            while (reported := [_standing(hf, job_id) for job_id in ("killed", "late")]) != [
                "pending",
                "error",
            ]:
                assert time.monotonic() < deadline_s, reported
                ears.wait(deadline_s - time.monotonic())
        assert server.end() == 0
    if hf.store.embedded:
        # Its audit log is beside it; that of a database is in the server's own state folder.
        assert hf.job_log is not None and hf.job_log.status("late") is not None


def _standing(hf: Holdfast, job_id: str) -> str:
    """As it is stored: who asks for it otherwise would reap it."""
    job = hf.jobs.peek(job_id)
    assert job is not None
    return job.status.value


@pytest.mark.parametrize(
    "command", ["serve", "gateway serve coder --adapter command"], ids=["store", "gateway"]
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_it_is_not_served_beyond_this_machine_by_accident(
    tmp_path: Path, host: str, command: str
) -> None:
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    refused = say(*command.split(), "--host", host, "--port", "0")
    assert refused.status == 2 and "--expose" in refused.err and "TLS" in refused.err
    assert not (tmp_path / "store.sqlite").exists()


def test_exposed_it_still_wants_the_token(tmp_path: Path) -> None:
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    with serving(
        say, "--host", "0.0.0.0", "--expose", "--port", "0", "--allow-host", "lab:80"
    ) as server:
        port = server.announced["url"].rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/locks", timeout=PATIENCE_S).status_code == 401
        assert server.http.get("/v1/locks", headers={"Host": "lab:80"}).status_code == 200
        assert server.http.get("/v1/locks", headers={"Host": "lab:81"}).status_code == 403
        assert server.end() == 0
        assert server.process.stderr is not None
        said = server.process.stderr.read()
        assert "without TLS" in said and "--allow-host" not in said


def test_served_at_every_address_and_under_no_name_it_says_that_others_are_refused(
    tmp_path: Path,
) -> None:
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    with serving(say, "--host", "0.0.0.0", "--expose", "--port", "0") as server:
        assert (
            "--allow-host"
            in server.http.get("/v1/locks", headers={"Host": "lab:80"}).json()["message"]
        )
        assert server.end() == 0
        assert server.process.stderr is not None
        assert "--allow-host NAME:PORT" in server.process.stderr.read()


def test_a_token_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    say = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    folder = tmp_path / "store.sqlite-server" / "default"
    folder.mkdir(parents=True)
    (folder / "token").write_text("t" * 43)
    os.chmod(folder / "token", 0o644)
    refused = say("serve", "--port", "0")
    assert refused.status == 6 and "chmod 600" in refused.err


def test_nothing_that_was_accepted_is_lost_when_it_stops(say: CommandLine) -> None:
    accepted: list[str] = []
    with serving(say, "--port", "0") as server:
        enough = threading.Event()
        threads = [
            threading.Thread(target=_register, args=(server, accepted, enough)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        assert enough.wait(PATIENCE_S)
        assert server.end() == 0
        for thread in threads:
            thread.join(PATIENCE_S)
    with connect(say.environment["HOLDFAST_STORE"]) as hf:
        there = {job.job_id for job in hf.jobs.list_jobs()}
    assert len(accepted) >= 40 and set(accepted) <= there


def _register(server: Server, accepted: list[str], enough: threading.Event) -> None:
    headers = dict(server.http.headers)
    with httpx.Client(
        base_url=server.announced["url"], headers=headers, timeout=PATIENCE_S
    ) as client:
        while True:
            try:
                answer = client.post("/v1/jobs", json={"prompt": "x", "agent_session": "s"})
            except httpx.TransportError:
                return
            if answer.status_code != 200:
                return
            accepted.append(answer.json()["job_id"])
            if len(accepted) >= 40:
                enough.set()
