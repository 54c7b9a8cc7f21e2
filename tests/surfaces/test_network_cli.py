"""`holdfast network`: what each command prints, with which exit status, and that it does what the
library does.
"""

import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.connection import Holdfast, connect
from tests.harness.stores import store_url
from tests.surfaces.command import CommandLine, Say
from tests.surfaces.locking import a_dead_process

HOST = ("--ip", "10.1.1.1/24", "--router", "router-1", "--mac", "02:00:00:00:00:01")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with connect(url) as made:
        yield made


def add(say: Say, number: int = 1) -> None:
    mac, ip = f"02:00:00:00:00:{number:02x}", f"10.1.1.{number}/24"
    assert (
        say(
            "network",
            "hosts",
            "add",
            f"h{number}",
            "--ip",
            ip,
            "--router",
            "router-1",
            "--mac",
            mac,
        ).status
        == 0
    )


def shown(say: Say, *words: str) -> Any:
    ran = say("network", *words, "--json")
    assert (ran.status, ran.err) == (0, "")
    return json.loads(ran.out)


def test_hosts(say: Say, hf: Holdfast) -> None:
    assert say("network", "hosts", "add", "h1", *HOST, "--info", "rack=7") == (
        0,
        "registered h1\n",
        "",
    )
    assert shown(say, "hosts", "get", "h1") == hf.network.get_host_info("h1")
    assert (
        hf.network.list_all_hosts()
        == shown(say, "hosts", "list")
        == shown(say, "hosts", "list", "--router", "router-1")
    )
    assert shown(say, "hosts", "list", "--router", "router-2") == {}
    assert say("network", "hosts", "list").out.split("\t")[:4] == [
        "h1",
        "10.1.1.1/24",
        "router-1",
        "02:00:00:00:00:01",
    ]
    assert re.search(r"^rack +7$", say("network", "hosts", "get", "h1").out, re.MULTILINE)
    taken = say(
        "network",
        "hosts",
        "add",
        "h2",
        "--ip",
        "10.1.1.1",
        "--router",
        "r",
        "--mac",
        "02:00:00:00:00:02",
    )
    assert taken.status == 4 and "host h1" in taken.err
    assert say("network", "hosts", "remove", "h1") == (0, "unregistered h1\n", "")
    gone = say("network", "hosts", "remove", "h1")
    assert gone.status == 1 and "no host h1" in gone.err
    assert say("network", "hosts", "get", "h1").status == 1
    added = shown(say, "hosts", "add", "h1", *HOST)
    assert (added["host"], added["primary_ip"]) == ("h1", "10.1.1.1/24")
    assert shown(say, "hosts", "remove", "h1") == {"unregistered": "h1"}


@pytest.mark.parametrize(
    "words",
    [
        ("hosts", "add", "h1", "--ip", "no", "--router", "r", "--mac", "02:00:00:00:00:01"),
        ("hosts", "add", "a:b", *HOST),
        ("hosts", "add", "h1", *HOST, "--info", "rack"),
        ("hosts", "add", "h1"),
        ("leases", "take", "h1", "--by", "run", "--type", "slow"),
        ("leases", "take", "h1", "--by", "run", "--type", "quick", "--dscp", "64"),
        ("leases", "take", "h1", "--type", "quick"),
        ("leases", "take", "h1", "--by", "run", "--type", "quick", "--ttl", "0"),
        ("routers", "lock", "r", "--by", "job"),
        ("neighbors", "take", "h1", "nowhere", "--by", "run"),
    ],
)
def test_a_wrong_word_is_status_2_and_changes_nothing(
    say: Say, hf: Holdfast, words: tuple[str, ...]
) -> None:
    ran = say("network", *words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err
    assert hf.network.list_all_hosts() == {}


def test_leases(say: Say, hf: Holdfast) -> None:
    add(say, 1)
    add(say, 2)
    take = ("leases", "take", "h1", "h2", "--type", "quick", "--dscp", "46")
    assert say("network", *take, "--by", "run-1") == (0, "h1\t1\nh2\t1\n", "")
    assert shown(say, *take, "--by", "run-2", "--ttl", "600", "--router", "router-1") == {
        "h1": 2,
        "h2": 2,
    }
    assert shown(say, "leases", "list") == hf.network.list_host_leases()
    assert list(shown(say, "leases", "list", "h2")) == ["h2"]
    first = hf.network.list_host_leases("h1")["h1"]["leases"][0]
    # One-shot commands record no process by default, and without a time a lease lasts until it is
    # dropped.
    assert (first["pid"], first["expires_at"], first["dscp"]) == (None, None, 46)
    rows = [line.split("\t") for line in say("network", "leases", "list").out.splitlines()]
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        (h, r, "held") for h in ("h1", "h2") for r in ("run-1", "run-2")
    ]
    refused = say("network", "hosts", "remove", "h1")
    assert refused.status == 4 and "run-1, run-2" in refused.err
    assert say("network", "leases", "drop", "h1", "--by", "run-1") == (0, "1\n", "")
    assert shown(say, "leases", "drop", "h1", "--by", "run-2") == {
        "host": "h1",
        "count": 0,
        "should_delete": True,
    }
    assert say("network", "leases", "drop", "h1", "--by", "run-2").status == 1
    assert say("network", "hosts", "remove", "h2", "--force").status == 0
    assert say("network", "leases", "take", "h9", "--by", "run", "--type", "quick").status == 1
    assert (
        say(
            "network",
            "leases",
            "take",
            "h1",
            "h9",
            "--by",
            "r",
            "--type",
            "quick",
            "--router",
            "router-1",
        ).status
        == 1
    )
    assert hf.network.list_host_leases() == {}


def test_a_lease_of_a_process_ends_with_it(say: Say, hf: Holdfast) -> None:
    add(say)
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = (
        "network",
        "leases",
        "take",
        "h1",
        "--by",
        "run",
        "--type",
        "detailed",
        "--pid",
        str(gone.pid),
    )
    if not hf.store.embedded:
        ran = say(*lease)
        assert ran.status == 2 and "--ttl" in ran.err
    assert say(*lease, "--ttl", "600").status == 0
    assert (
        say(
            "network",
            "neighbors",
            "take",
            "h1",
            "10.1.1.9",
            "--by",
            "run",
            "--pid",
            str(gone.pid),
            "--ttl",
            "9",
        ).status
        == 0
    )
    gone.communicate(b"\n", 30)
    assert say("network", "leases", "list").out.rstrip().endswith("\tdead")
    assert shown(say, "sweep") == {"host_leases": 1, "neighbor_leases": 1}
    assert say("network", "sweep").out == "swept 0 host leases and 0 neighbour leases\n"
    assert say(*lease, "--ttl", "600").status == 1


def test_the_help_of_a_router_names_commands_that_routers_have(say: Say) -> None:
    output = say("network", "routers", "wait", "--help").out
    assert "holdfast network routers wait router-1" in output and "use `lock`" in output
    assert "holdfast locks wait router-1" in say("locks", "wait", "--help").out


def test_routers_are_locks(say: Say, hf: Holdfast) -> None:
    locked = say("network", "routers", "lock", "router-1", "router-2", "--by", "job", "--ttl", "60")
    token = hf.locks.status("router-1").holds[0].token
    assert locked == (0, f"{token}\n", "")
    assert say("network", "routers", "status").out == say("locks", "status").out
    assert "job" in say("locks", "explain", "router-1").out
    assert (
        say(
            "network", "routers", "lock", "router-1", "--by", "other", "--ttl", "60", "-n", "-q"
        ).status
        == 5
    )
    assert say("network", "routers", "wait", "router-1", "-n", "-q").status == 5
    add(say)
    refused = say("network", "leases", "take", "h1", "--by", "other", "--type", "quick")
    assert refused.status == 4 and "held exclusively by job" in refused.err
    assert say("network", "leases", "take", "h1", "--by", "job", "--type", "quick").status == 0
    assert say("network", "routers", "unlock", "router-1", "--by", "other").status == 1
    assert shown(say, "routers", "unlock", "router-1", "router-2", "--by", "job") == {
        "released": ["router-1", "router-2"]
    }
    assert say("network", "routers", "wait", "router-1", "router-2").status == 0
    for job in ("a", "b"):
        assert (
            shown(say, "routers", "lock", "router-1", "--by", job, "--ttl", "60", "--shared")[
                "mode"
            ]
            == "shared"
        )


def test_the_kind_of_job_says_the_priority(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holdfast.toml").write_text("[network.job_priorities]\nquick = 10\n")
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []
    from holdfast.primitives.locks import Locks

    acquire = Locks.acquire

    def noting(self: Locks, *words: Any, **more: Any) -> Any:
        seen.append(more["priority"])
        return acquire(self, *words, **more)

    monkeypatch.setattr(Locks, "acquire", noting)
    for more in (
        ["--type", "quick"],
        ["--type", "detailed"],
        ["--type", "quick", "--priority", "3"],
        [],
    ):
        assert (
            say("network", "routers", "lock", "r", "--by", "job", "--ttl", "60", *more, "-q").status
            == 0
        )
    assert seen == [10, 0, 3, 0]


def test_the_configured_rule_for_addresses_is_that_of_the_command(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def added(name: str, router: str, number: int) -> int:
        mac = f"02:00:00:00:00:{number:02}"
        return say(
            "network", "hosts", "add", name, "--ip", "10.9.0.1", "--router", router, "--mac", mac
        ).status

    monkeypatch.chdir(tmp_path)
    assert [added("n1", "r1", 1), added("n2", "r2", 2)] == [0, 4]
    (tmp_path / "holdfast.toml").write_text('[network]\nip_uniqueness = "router"\n')
    assert [added("n2", "r2", 2), added("n3", "r2", 3)] == [0, 4]


def test_the_configured_limits_are_those_of_the_command(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "[network.lock_timeouts]\nrouter_lock = 7\nrouter_lock_atomic = 9\n"
    )
    monkeypatch.chdir(tmp_path)
    seen: list[float] = []
    from holdfast.primitives.locks import Locks

    acquire = Locks.acquire

    def noting(self: Locks, *words: Any, **more: Any) -> Any:
        seen.append(more["timeout_s"])
        return acquire(self, *words, **more)

    monkeypatch.setattr(Locks, "acquire", noting)
    for words in (["r"], ["r", "s"], ["r", "s", "-w", "3"], ["r", "-n"]):
        assert (
            say("network", "routers", "lock", *words, "--by", "job", "--ttl", "60", "-q").status
            == 0
        )
    assert seen == [7, 9, 3, 0]


def test_neighbours(say: Say, hf: Holdfast) -> None:
    take, drop = (
        ("network", "neighbors", "take", "h1", "10.1.1.9"),
        ("network", "neighbors", "drop", "h1", "10.1.1.9"),
    )
    assert say(*take, "--by", "a") == (0, "1\n", "")
    assert shown(say, *take[1:], "--by", "b")["count"] == 2
    assert shown(say, "neighbors", "list") == hf.network.list_neighbor_leases()
    assert len(say("network", "neighbors", "list").out.splitlines()) == 2
    assert shown(say, *drop[1:], "--by", "c") == {
        "host": "h1",
        "neighbor_ip": "10.1.1.9",
        "count": 2,
        "should_delete": False,
    }
    assert say(*drop, "--by", "a") == (0, "1\n", "")
    assert shown(say, *drop[1:], "--by", "b")["should_delete"] is True
    gone = say(*drop, "--by", "b")
    assert gone.status == 1 and "no run" in gone.err


def test_metrics_are_what_prometheus_reads(say: Say, hf: Holdfast) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    add(say)
    assert say("network", "leases", "take", "h1", "--by", "run", "--type", "quick").status == 0
    with hf.network.router_lock("router-1", "job"):
        assert not hf.network.acquire_router_lock("router-1", "other", 0)
        hf.locks.statistics()
        text = say("network", "metrics").out
    samples = {
        (sample.name, sample.labels.get("resource"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["holdfast_lock_grants_total", "router-1", None] == 1
    assert samples["holdfast_lock_timeouts_total", "router-1", None] == 1
    assert samples["holdfast_lock_holders", "router-1", None] == 1
    assert samples["holdfast_lock_hold_seconds_bucket", "router-1", "+Inf"] == 0
    assert samples["holdfast_registry_hosts", None, None] == 1
    assert samples["holdfast_registry_host_leases", None, None] == 1


def test_metrics_without_the_extra_say_what_is_missing(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    ran = say("network", "metrics")
    assert ran.status == 6 and "pip install" in ran.err


def test_the_journal_records_changes_of_a_host(say: Say) -> None:
    add(say)
    add(say, 2)
    assert say("network", "leases", "take", "h1", "--by", "run", "--type", "quick").status == 0
    logged = [
        json.loads(line)["kind"]
        for line in say("log", "--subject", "h1", "--json").out.splitlines()
    ]
    assert logged == ["host.registered", "host_lease.taken"]


def test_on_a_terminal(tmp_path: Path) -> None:
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite")
    assert "No hosts" in holdfast.on_a_terminal("network", "hosts", "list")
    assert holdfast("network", "hosts", "add", "h1", *HOST).status == 0
    assert "router-1" in holdfast.on_a_terminal("network", "hosts", "list", columns=100)
    assert "No leases" in holdfast.on_a_terminal("network", "leases", "list")


def test_looking_makes_no_store(tmp_path: Path) -> None:
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/none/store.sqlite")
    for words in (
        ("hosts", "list"),
        ("leases", "list"),
        ("neighbors", "list"),
        ("metrics",),
        ("routers", "status"),
    ):
        assert holdfast("network", *words).status == 0
    assert not os.path.exists(tmp_path / "none")


def test_a_dead_processes_pid_is_refused(say: Say) -> None:
    add(say)
    dead = a_dead_process()
    ran = say(
        "network",
        "leases",
        "take",
        "h1",
        "--by",
        "run",
        "--type",
        "quick",
        "--pid",
        str(dead.pid),
        "--ttl",
        "9",
    )
    assert ran.status == 1 and "no live process" in ran.err
