"""A registry whose users are killed, forked and many: all or nothing, nothing leaks, nothing is had
twice.
"""

import json
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import RegistryManager
from holdfast.domains.network import Registry
from holdfast.kernel.settings import LockTimeouts, NetworkSettings
from holdfast.runtime.connection import Holdfast
from holdfast.testing import faults
from tests.harness.children import KILLED, Child, exit_status_of
from tests.harness.errors import raises
from tests.harness.stopped_processes import stop_outside
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.network_invariants import State, check, entries_of, stored
from tests.unit.network_world import host

ROUTERS = [f"router-{number}" for number in range(5)]


@pytest.fixture
def lab() -> Iterator[Path]:
    """A folder in memory, where registries of plain files are kept: a hundred jobs would wait long
    for a disk.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path, lab: Path) -> str:
    """What processes may share."""
    if request.param == "files":
        return f"files:{lab}"
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        yield connected


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path, lab: Path) -> Iterator[Holdfast]:
    """What threads may share."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/store", "files": f"files:{lab}"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    with holdfast.connect(url) as connected:
        yield connected


def wanted(*numbers: int) -> list[dict[str, Any]]:
    return [
        {"host_name": f"h{number}", "job_type": "quick", "router_name": "router-1"}
        for number in numbers
    ]


# --- killed at every point ---

CHANGES: dict[str, Callable[[Holdfast, int], object]] = {
    "register": lambda hf, at: hf.network.register_hosts(
        [host(1000 + 10 * at + number) for number in range(3)]
    ),
    "unregister": lambda hf, at: hf.network.unregister_host(f"h{at}", force=True),
    "lease": lambda hf, at: hf.network.acquire_source_host_leases(
        f"new-{at}", wanted(0, 1, 2), pid=None
    ),
    "release": lambda hf, at: hf.network.release_source_host_lease(f"run-{at}", "h900"),
    "take": lambda hf, at: hf.network.acquire_neighbor_lease(
        f"new-{at}", "h1", "10.9.9.9", pid=None
    ),
    "drop": lambda hf, at: hf.network.release_neighbor_lease(f"run-{at}", "h1", "10.9.9.8"),
}


def prepare(hf: Holdfast, points: int) -> None:
    hf.network.register_hosts([host(number) for number in [*range(points), 900]])
    for at in range(points):
        hf.network.acquire_source_host_leases(f"run-{at}", wanted(at, 900), pid=None)
        hf.network.acquire_neighbor_lease(f"run-{at}", "h1", "10.9.9.8", pid=None)


@pytest.mark.prove
@pytest.mark.usefixtures("untrimmed")
@pytest.mark.parametrize("change", CHANGES)
def test_killed_at_every_point_of_a_change(tmp_path: Path, change: str) -> None:
    """It has happened whole or not at all, and the journal says which."""
    url = f"sqlite:{tmp_path}/store.sqlite"
    with holdfast.connect(url) as hf:
        prepare(hf, 40)
        points = faults.recorded(lambda: CHANGES[change](hf, 39))
        committed = points.index("sqlite.commit.after")
        for at in range(len(points)):
            before = stored(hf)
            assert exit_status_of(partial(dying, url, CHANGES[change], at)) == KILLED
            after = check(hf)
            assert (after != before) == (at >= committed), f"killed at {points[at]}"
            if after != before:
                assert whole(change, before, after, at), f"killed at {points[at]}"
        assert {
            "sqlite.gate.before",
            "sqlite.write",
            "sqlite.commit.before",
            "sqlite.sync.after",
        } <= set(points)


def whole(change: str, before: State, after: State, at: int) -> bool:
    """Are all parts of a change there?"""
    if change == "register":
        return len(after[0] - before[0]) == 3
    if change == "unregister":
        return before[0] - after[0] == {f"h{at}"} and f"h{at}" not in after[1]
    if change == "lease":
        return all(f"new-{at}" in after[1][name] for name in ("h0", "h1", "h2"))
    return True


def dying(url: str, change: Callable[[Holdfast, int], object], at: int) -> None:
    with holdfast.connect(url) as mine, faults.armed(at=at, action=faults.kill):
        change(mine, at)


@pytest.mark.prove
@pytest.mark.usefixtures("untrimmed")
def test_a_killed_process_loses_no_line_of_the_transaction_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every point of a change and of its copy; the next one that comes copies what is
    missing, each line once.
    """
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path}/store.sqlite")
    log = tmp_path / "registry.log"
    config = {"transaction_log_path": str(log)}
    manager = RegistryManager(config)
    manager.register_host(**host(200))
    points = faults.recorded(lambda: manager.register_host(**host(0)))
    assert points.count("journal_mirror.written") == 1
    for at in range(len(points)):
        assert exit_status_of(partial(_register_dying, config, at)) == KILLED
        if at % 3 == 0:
            manager.sweep()
    manager.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    with holdfast.connect() as hf:
        logged = [entry.revision for entry in entries_of(hf) if entry.kind == "host.registered"]
        assert [line["details"]["revision"] for line in lines] == logged
        assert {line["details"]["subject"] for line in lines} == set(hf.network.list_all_hosts())
    assert 2 < len(lines) <= len(points) + 2


def _register_dying(config: dict[str, str], at: int) -> None:
    mine = RegistryManager(config)
    with faults.armed(at=at, action=faults.kill):
        mine.register_host(**host(1 + at))


# --- the dead ---


def test_a_killed_runs_leases_and_routers_are_free(hf: Holdfast, url: str) -> None:
    hf.network.register_host(**host(1))

    def work() -> None:
        mine = holdfast.connect(url).network
        assert mine.acquire_all_router_locks_atomic(["router-1", "router-2"], "victim")
        mine.acquire_source_host_lease("victim", "h1", "detailed", "router-1")
        mine.acquire_neighbor_lease("victim", "h1", "10.9.9.9")

    child = Child(work)
    assert hf.network.is_router_locked("router-1")
    with raises(holdfast.RegistryHeld, holder="victim"):
        hf.network.acquire_source_host_lease("next", "h1", "quick", "router-1")
    child.kill()
    assert not hf.network.is_router_locked("router-1")
    assert hf.network.get_host_lease_count("h1") == 0
    assert hf.network.wait_for_all_routers(["router-1", "router-2"], 0)
    assert hf.network.acquire_router_lock("router-1", "next", 0)
    assert hf.network.acquire_source_host_lease("next", "h1", "quick", "router-1") == 1
    assert hf.network.sweep() == (0, 1)
    check(hf)


def test_a_stopped_runs_lease_counts(hf: Holdfast, url: str) -> None:
    hf.network.register_host(**host(1))
    child = Child(
        lambda: holdfast.connect(url).network.acquire_source_host_lease(
            "slow", "h1", "quick", "router-1"
        )
    )
    stop_outside(child.pid, url)
    assert hf.network.sweep() == (0, 0)
    assert hf.network.get_host_lease_count("h1") == 1
    child.kill()
    assert hf.network.sweep() == (1, 0)


# --- fork ---


def test_a_forked_child_uses_the_same_manager_for_itself(hf: Holdfast) -> None:
    registry = hf.network
    registry.register_host(**host(1))
    assert registry.acquire_router_lock("router-1", "parent")
    registry.acquire_source_host_lease("parent", "h1", "quick", "router-1")

    def work() -> None:
        assert not registry.acquire_router_lock("router-1", "child", 0)
        assert registry.acquire_router_lock("router-2", "child", 0)
        registry.acquire_neighbor_lease("child", "h1", "10.9.9.9")

    child = Child(work)
    assert registry.is_router_locked("router-2")
    assert registry.list_neighbor_leases()["h1:10.9.9.9"]["leases"][0]["pid"] == child.pid
    child.kill()
    assert not registry.is_router_locked("router-2")
    assert registry.sweep() == (0, 1)
    assert registry.get_host_lease_count("h1") == 1
    assert registry.release_router_lock("router-1", "parent")


def test_a_child_may_release_its_parents_router_by_the_jobs_name(hf: Holdfast) -> None:
    """The same job is the same holder; a block of the parent then ends with a loss."""
    registry = hf.network
    assert registry.acquire_router_lock("router-1", "job")
    child = Child(lambda: registry.release_router_lock("router-1", "job"))
    assert not registry.is_router_locked("router-1")
    assert not registry.release_router_lock("router-1", "job")
    child.kill()


# --- many ---

HOSTS_MANY = 1000
JOBS = 100


def patient(hf: Holdfast) -> Registry:
    """The registry with time limits for a busy machine: a hundred jobs at once are many syncs in a
    row.
    """
    times = LockTimeouts(host_registry=120, host_leases=120, neighbor_leases=120)
    settings = NetworkSettings(lock_timeouts=times)
    return Registry(hf.store, hf.log, hf.processes, hf.locks, settings)


def job(registry: Registry, number: int, turns: int) -> list[str]:
    """One job: leases hosts under shared routers, works on some alone, and races for one address.
    Returns what it won.
    """
    dice, run, won = Random(number), f"run-{number}", []
    for turn in range(turns):
        at = dice.randrange(HOSTS_MANY)
        router = ROUTERS[at % len(ROUTERS)]
        with registry.router_lock(router, run, mode="shared", timeout=120):
            assert registry.acquire_source_host_lease(run, f"h{at}", "quick", router) >= 1
            registry.release_source_host_lease(run, f"h{at}")
        if turn == 0:
            kept = 900 + number % 10
            router = ROUTERS[kept % len(ROUTERS)]
            with registry.router_lock(router, run, mode="shared", timeout=120):
                registry.acquire_source_host_lease(run, f"h{kept}", "quick", router, pid=None)
            chosen = dice.sample(ROUTERS, 2)
            with registry.all_router_locks(chosen, run, timeout=120):
                pass
        # Everybody wants the same few addresses.
        new = {**host(5000 + number, router), "primary_ip": f"192.168.0.{1 + turn}"}
        if registry.check_and_register_host(**new):
            won.append(new["host_name"])
            break
    return won


def finish(hf: Holdfast, won: list[str], jobs: int) -> None:
    hosts, leases, _ = check(hf)
    assert len(hosts) == HOSTS_MANY + len(won) and set(won) <= hosts
    assert sum(len(runs) for runs in leases.values()) == jobs
    for at in range(10):
        assert hf.network.get_host_lease_count(f"h{900 + at}") == jobs // 10
    assert not any(hf.network.is_router_locked(name) for name in ROUTERS)


def fill(hf: Holdfast) -> None:
    hf.network.register_hosts(
        [host(number, ROUTERS[number % len(ROUTERS)]) for number in range(HOSTS_MANY)]
    )


@pytest.mark.prove
def test_a_hundred_jobs_as_threads_on_a_thousand_hosts(anywhere: Holdfast) -> None:
    fill(anywhere)
    registry = patient(anywhere)
    with ThreadPoolExecutor(JOBS) as pool:
        won = [
            name
            for names in pool.map(lambda number: job(registry, number, 2), range(JOBS))
            for name in names
        ]
    registry.close()
    assert len(won) == 2
    finish(anywhere, won, JOBS)


def _process_of_jobs(task: tuple[str, int, int]) -> list[str]:
    url, first, many = task
    with holdfast.connect(url) as hf, ThreadPoolExecutor(many) as pool:
        registry = patient(hf)
        won = [
            name
            for names in pool.map(
                lambda number: job(registry, number, 2), range(first, first + many)
            )
            for name in names
        ]
        registry.close()
    return won


@pytest.mark.prove
def test_a_hundred_jobs_as_processes_with_managers_of_their_own(hf: Holdfast, url: str) -> None:
    """Five processes with twenty jobs each."""
    fill(hf)
    with multiprocessing.get_context("spawn").Pool(5) as pool:
        ended = pool.map_async(
            _process_of_jobs, [(url, 20 * number, 20) for number in range(5)], chunksize=1
        ).get(2 * PATIENCE_S)
    won = [name for names in ended for name in names]
    assert len(won) == 2
    finish(hf, won, JOBS)


def _cycles(task: tuple[str, int, int]) -> int:
    """Take a router again and again; its holder is alone, by a file that only one may make."""
    url, number, turns = task
    witness = Path(os.environ["NETWORK_WITNESS"])
    with holdfast.connect(url) as hf:
        for _ in range(turns):
            with hf.network.router_lock("router-1", f"job-{number}", timeout=120):
                fd = os.open(witness, os.O_CREAT | os.O_EXCL)
                os.close(fd)
                witness.unlink()
    return turns


@pytest.mark.prove
def test_rapid_cycles_by_two_managers_in_two_processes_never_overlap(
    hf: Holdfast, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETWORK_WITNESS", str(tmp_path / "witness"))
    turns = 300 if hf.store.embedded else 60
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ended = pool.map_async(
            _cycles, [(url, number, turns) for number in range(2)], chunksize=1
        ).get(2 * PATIENCE_S)
    assert ended == [turns, turns]
    assert hf.network.router_statistics(["router-1"])["router-1"].grants == 2 * turns
    assert not hf.network.is_router_locked("router-1")


def test_threads_that_register_one_address_get_one_host(anywhere: Holdfast) -> None:
    hf = anywhere
    start = threading.Barrier(8)

    def race(number: int) -> bool:
        start.wait(PATIENCE_S)
        return hf.network.check_and_register_host(**{**host(number), "primary_ip": "10.5.5.5"})

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1
    check(hf)
