"""Machines in real networks of their own, one of which is cut off: leases decide, and tokens keep
the late one out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ports import spare_port
from tests.harness.timeouts import until
from tests.stores.postgres_server import running

pytestmark = pytest.mark.prove

LEASE_S = 1.0
ROOT = Path(__file__).parents[2]
# Another run on this machine has another.
NET = f"10.213.{os.getpid() % 250}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Distant:
    """A machine behind a cable that can be pulled out."""

    def __init__(self, number: int, url: str, folder: Path) -> None:
        self.number, self._name = number, f"hf{os.getpid()}-{number}"
        self._cable = f"hfc{os.getpid() % 10**6}{number}"
        ip("netns", "add", self._name)
        try:
            ip(
                "link",
                "add",
                self._cable,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self._name,
            )
            ip("addr", "add", f"{NET}.{4 * number + 1}/30", "dev", self._cable)
            ip("-n", self._name, "addr", "add", f"{NET}.{4 * number + 2}/30", "dev", "eth0")
            ip("-n", self._name, "link", "set", "eth0", "up")
            self.plug_in()
        except BaseException:
            ip("netns", "del", self._name)
            raise
        environment = {
            **os.environ,
            "HOLDFAST_STORE": url.format(f"{NET}.{4 * number + 1}"),
            "PYTHONPATH": str(ROOT),
        }
        environment["HOLDFAST_HOST_ID"] = f"machine-{number}"
        command = [
            "ip",
            "netns",
            "exec",
            self._name,
            sys.executable,
            "-m",
            "tests.hazards.postgres_distant",
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=folder,
            text=True,
        )

    def plug_in(self) -> None:
        ip("link", "set", self._cable, "up")

    def pull_out(self) -> None:
        """From here on no packet goes either way, and neither side gets an error."""
        ip("link", "set", self._cable, "down")

    def ask(self, name: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        return said.get("result", said)

    def call(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        ip("netns", "del", self._name)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Distant]]:
    try:
        ip("netns", "add", name := f"hf{os.getpid()}-try")
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces here: be root on a machine that has `ip netns`")
    (tmp_path / "holdfast.toml").write_text(f"[locks]\nlease_s = {LEASE_S}\n")
    port = str(spare_port())
    with running(listen_addresses="*", port=port) as server, ExitStack() as stack:
        with (server.folder / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {NET}.0/24 trust\n")
        server.reload()
        made = []
        for number in (1, 2):
            made.append(Distant(number, f"postgresql://holdfast@{{}}:{port}/postgres", tmp_path))
            stack.callback(made[-1].close)
        yield made


def test_a_machine_that_is_cut_off_loses_what_it_holds_and_cannot_act_on_it_when_it_is_back(
    machines: list[Distant],
) -> None:
    cut, other = machines
    job_id = other.call("register")
    claim = cut.call("pick")
    assert claim[0] == job_id
    old = cut.call("acquire", "router")
    other.ask("acquire", "router")
    cut.pull_out()
    # The other cannot see whether the holder lives; it waits for the end of its lease, and no
    # longer.
    new = other.answer()
    assert new > old
    answers: list[str] = []

    def knows_that_it_is_cut_off() -> bool:
        answers.append(cut.call("check_token", "router", old)["error"])
        return answers[-1] == "store_unavailable"

    # Before that, its own threads may still wait on every connection.
    until(knows_that_it_is_cut_off)
    assert {*answers} <= {"store_unavailable", "lock_timeout"}
    other.call("put_back", job_id)
    picked = other.call("pick")
    assert picked[0] == job_id
    cut.plug_in()
    assert cut.call("lost") is True
    assert cut.call("check_token", "router", old)["error"] == "fenced"
    assert cut.call("complete", *claim)["error"] == "fenced"
    assert other.call("complete", *picked) == "completed"
