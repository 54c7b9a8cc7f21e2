"""Random sequences of everything that can happen to a registry, each answer compared with plain
dicts and sets.

One program plays three processes on a clock that moves only when told; processes die and are
followed by new ones. The oracle keeps hosts in a dict, leases in dicts of dicts and routers in
dicts of modes, and knows by itself who is gone. After every step the two are compared in full, and
so is the journal.
"""

import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.domains.network import Registry
from holdfast.kernel.errors import RegistryCollision, RegistryHeld, RegistryNotFound
from holdfast.kernel.settings import NetworkSettings
from holdfast.kernel.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.hazards.network_invariants import replayed
from tests.model.search import search
from tests.unit.network_world import World

pytestmark = pytest.mark.prove

NAMES = ["h1", "h2", "h3"]
IPS = ["10.0.0.1/24", "10.0.0.1/16", "10.0.0.2/24", "::ffff:10.0.0.2", "fe80::1"]
MACS = ["02:00:00:00:00:01", "02-00-00-00-00-01", "0200.0000.0002", "02:00:00:00:00:03"]
RUNS = ["a", "b", "c"]
ROUTERS = ["r1", "r2"]
SEATS = 3

SAME_IP = {"10.0.0.1/24": 1, "10.0.0.1/16": 1, "10.0.0.2/24": 2, "::ffff:10.0.0.2": 2, "fe80::1": 3}
SAME_MAC = {
    "02:00:00:00:00:01": 1,
    "02-00-00-00-00-01": 1,
    "0200.0000.0002": 2,
    "02:00:00:00:00:03": 3,
}


class Claim(NamedTuple):
    """What the oracle knows of one lease."""

    seat: int | None
    """The process, by the number of its life."""
    ends_at: datetime | None


Locked = set[tuple[str, int]]
"""What a job has of a router: modes, each with the life of the process that took it."""


def modes_of(held: Locked) -> set[str]:
    return {mode for mode, _ in held}


names, ips, macs, runs = (st.sampled_from(values) for values in (NAMES, IPS, MACS, RUNS))
routers = st.sampled_from(ROUTERS)
seats = st.integers(0, SEATS - 1)
ttls = st.sampled_from([None, None, 10.0, 60.0])
modes = st.sampled_from(["exclusive", "shared"])


class RegistryMachine(RuleBasedStateMachine):
    """Each rule does one thing to the registry and to the oracle."""

    def __init__(self, opened: Callable[[ManualClock], Store], strict: bool) -> None:
        super().__init__()
        clock = ManualClock()
        self.world = World(opened(clock), clock, NetworkSettings(require_router_lock=strict))
        self.strict = strict
        self.lives = count(SEATS)
        self.seats: list[tuple[int, int, Registry]] = []
        """The number of each process's life, its pid and its registry."""
        self.pids = count(2)
        for number in range(SEATS):
            self._begin(number, number)
        self.hosts: dict[str, tuple[str, str, str]] = {}
        self.leases: dict[str, dict[str, Claim]] = {name: {} for name in NAMES}
        self.neighbors: dict[str, dict[str, Claim]] = {name: {} for name in NAMES}
        self.routers: dict[str, dict[str, Locked]] = {name: {} for name in ROUTERS}

    def _begin(self, seat: int, life: int) -> None:
        pid = next(self.pids)
        self.seats[seat : seat + 1] = [(life, pid, self.world.process(pid))]

    def _alive(self, claim: Claim) -> bool:
        if claim.seat is not None and claim.seat not in {life for life, _, _ in self.seats}:
            return False
        return claim.ends_at is None or claim.ends_at >= self.world.clock.now()

    def _living(self, claims: dict[str, Claim]) -> dict[str, Claim]:
        return {run: claim for run, claim in claims.items() if self._alive(claim)}

    def _holders(self, router: str) -> dict[str, Locked]:
        """What jobs have of a router by processes that live: one may have it for a job in shared
        mode, and another alone.
        """
        lives = {life for life, _, _ in self.seats}
        living = {
            job: {one for one in held if one[1] in lives}
            for job, held in self.routers[router].items()
        }
        return {job: held for job, held in living.items() if held}

    def _collides(self, name: str, ip: str, mac: str) -> bool:
        taken = [
            (other, SAME_IP[known[0]], SAME_MAC[known[2]]) for other, known in self.hosts.items()
        ]
        return any(
            name == other or SAME_IP[ip] == one or SAME_MAC[mac] == two for other, one, two in taken
        )

    # --- hosts ---

    @rule(seat=seats, name=names, ip=ips, mac=macs, router=routers)
    def register(self, seat: int, name: str, ip: str, mac: str, router: str) -> None:
        expected = not self._collides(name, ip, mac)
        assert self.seats[seat][2].check_and_register_host(name, ip, router, mac) is expected
        if expected:
            self.hosts[name] = (ip, router, mac)

    @rule(seat=seats, picks=st.lists(st.tuples(names, ips, macs, routers), max_size=3))
    def register_batch(self, seat: int, picks: list[tuple[str, str, str, str]]) -> None:
        before = dict(self.hosts)
        fits = True
        for name, ip, mac, router in picks:
            fits = fits and not self._collides(name, ip, mac)
            self.hosts.setdefault(name, (ip, router, mac))
        batch = [
            {"host_name": n, "primary_ip": i, "connected_to": r, "mac_address": m}
            for n, i, m, r in picks
        ]
        try:
            assert self.seats[seat][2].register_hosts(batch) == len(picks)
            assert fits
        except RegistryCollision:
            assert not fits
            self.hosts = before

    @rule(seat=seats, name=names, force=st.booleans())
    def unregister(self, seat: int, name: str, force: bool) -> None:
        living = self._living(self.leases[name])
        if living and name in self.hosts and not force:
            with pytest.raises(RegistryHeld) as refused:
                self.seats[seat][2].unregister_host(name)
            assert refused.value.fields["holders"] == list(living)
            return
        assert self.seats[seat][2].unregister_host(name, force=force) is (name in self.hosts)
        if name in self.hosts or force:
            self.hosts.pop(name, None)
            self.leases[name] = {}

    # --- leases ---

    def _admitted(self, run: str, picks: list[str], router: str) -> str:
        """What is expected of a lease: "" when it is given."""
        held = self._holders(router)
        alone = any("exclusive" in modes_of(locked) and job != run for job, locked in held.items())
        if alone or (self.strict and run not in held):
            return "held"
        for name in picks:
            if name not in self.hosts:
                return "unknown"
            if self.hosts[name][1] != router:
                return "stranger"
        return ""

    @rule(
        seat=seats,
        run=runs,
        picks=st.lists(names, min_size=1, max_size=3, unique=True),
        router=routers,
        ttl=ttls,
        own=st.booleans(),
    )
    def lease(
        self, seat: int, run: str, picks: list[str], router: str, ttl: float | None, own: bool
    ) -> None:
        life, pid, registry = self.seats[seat]
        batch = [{"host_name": name, "job_type": "quick", "router_name": router} for name in picks]
        expected = self._admitted(run, picks, router)
        try:
            counts = registry.acquire_source_host_leases(
                run, batch, ttl_s=ttl, pid=pid if own else None
            )
        except RegistryHeld:
            assert expected == "held"
        except RegistryNotFound:
            assert expected == "unknown"
        except ValueError:
            assert expected == "stranger"
        else:
            assert expected == ""
            for name in picks:
                self._take(self.leases[name], run, life if own else None, ttl)
            assert counts == {name: len(self.leases[name]) for name in picks}

    def _take(
        self, claims: dict[str, Claim], run: str, life: int | None, ttl: float | None
    ) -> None:
        for gone in set(claims) - set(self._living(claims)):
            del claims[gone]
        ends_at = None if ttl is None else self.world.clock.now() + timedelta(seconds=ttl)
        claims[run] = Claim(life, ends_at)

    def _drop(self, claims: dict[str, Claim], run: str) -> tuple[int, bool]:
        held = claims.pop(run, None) is not None
        for gone in set(claims) - set(self._living(claims)):
            del claims[gone]
        return len(claims), held

    @rule(seat=seats, run=runs, name=names)
    def release(self, seat: int, run: str, name: str) -> None:
        left, held = self._drop(self.leases[name], run)
        if held:
            assert self.seats[seat][2].release_source_host_lease(run, name) == (left, left == 0)
        else:
            with pytest.raises(ValueError):
                self.seats[seat][2].release_source_host_lease(run, name)

    @rule(seat=seats, run=runs, name=names, ttl=ttls)
    def take_neighbor(self, seat: int, run: str, name: str, ttl: float | None) -> None:
        life, _, registry = self.seats[seat]
        counted = registry.acquire_neighbor_lease(run, name, "10.9.9.9", ttl_s=ttl)
        self._take(self.neighbors[name], run, life, ttl)
        assert counted == len(self.neighbors[name])

    @rule(seat=seats, run=runs, name=names)
    def drop_neighbor(self, seat: int, run: str, name: str) -> None:
        left, held = self._drop(self.neighbors[name], run)
        if held or left:
            assert self.seats[seat][2].release_neighbor_lease(run, name, "10.9.9.9") == (
                left,
                held and left == 0,
            )
        else:
            with pytest.raises(ValueError):
                self.seats[seat][2].release_neighbor_lease(run, name, "10.9.9.9")

    # --- routers ---

    @rule(seat=seats, job=runs, picks=st.lists(routers, max_size=2), mode=modes)
    def lock(self, seat: int, job: str, picks: list[str], mode: str) -> None:
        """A single try. What a job has in shared mode and wants alone, it gets when it is the only
        one.
        """
        life, _, registry = self.seats[seat]
        fits = all(
            other == job or (modes_of(held) == {"shared"} and mode == "shared")
            for router in picks
            for other, held in self._holders(router).items()
        )
        assert registry.acquire_all_router_locks_atomic(picks, job, 0, mode=mode) is fits
        if fits:
            for router in picks:
                self.routers[router] = self._holders(router)
                held = self.routers[router].setdefault(job, set())
                if not modes_of(held) & {mode, "exclusive"}:
                    held.add((mode, life))

    @rule(seat=seats, job=runs, picks=st.lists(routers, max_size=2, unique=True))
    def unlock(self, seat: int, job: str, picks: list[str]) -> None:
        held = [router for router in picks if job in self._holders(router)]
        freed = self.seats[seat][2].release_all_router_locks(picks, job)
        # The lock of a dead process may also be released by its job, if nobody took it yet.
        assert (
            len(held) <= freed <= len([router for router in picks if job in self.routers[router]])
        )
        for router in picks:
            self.routers[router].pop(job, None)

    # --- time and death ---

    @rule(seconds=st.sampled_from([1, 11, 61]))
    def advance(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @rule(seat=seats)
    def kill(self, seat: int) -> None:
        self.world.kill(self.seats[seat][1])
        self._begin(seat, next(self.lives))

    @rule(seat=seats)
    def sweep(self, seat: int) -> None:
        gone = [0, 0]
        for at, kept in enumerate((self.leases, self.neighbors)):
            for claims in kept.values():
                for run in set(claims) - set(self._living(claims)):
                    del claims[run]
                    gone[at] += 1
        assert self.seats[seat][2].sweep() == tuple(gone)

    # --- after every step ---

    @invariant()
    def same(self) -> None:
        registry = self.seats[0][2]
        infos = registry.list_all_hosts()
        assert {
            n: (i["primary_ip"], i["connected_to"], i["mac_address"]) for n, i in infos.items()
        } == self.hosts
        shown = registry.list_host_leases()
        for name in NAMES:
            found = {
                one["run_id"]: not one["dead"] for one in shown.get(name, {"leases": []})["leases"]
            }
            assert found == {run: self._alive(claim) for run, claim in self.leases[name].items()}
            assert registry.get_host_lease_count(name) == sum(found.values())
        entries = registry.list_neighbor_leases()
        for name in NAMES:
            found = {
                one["run_id"]: not one["dead"]
                for one in entries.get(f"{name}:10.9.9.9", {"leases": []})["leases"]
            }
            assert found == {run: self._alive(claim) for run, claim in self.neighbors[name].items()}
        for router in ROUTERS:
            assert registry.is_router_locked(router) is bool(self._holders(router))
        on_hosts, on_neighbors = (
            {key(name): set(claims) for name, claims in kept.items() if claims}
            for kept, key in ((self.leases, str), (self.neighbors, "{}:10.9.9.9".format))
        )
        assert replayed(self.world.entries()) == (set(self.hosts), on_hosts, on_neighbors)

    def teardown(self) -> None:
        self.world.close()


def agree(
    opened: Callable[[ManualClock], Store], *, examples: int, steps: int, strict: bool = False
) -> None:
    search(lambda: RegistryMachine(opened, strict), examples=examples, steps=steps)


@pytest.mark.parametrize("strict", [False, True])
def test_a_registry_in_memory_agrees_with_plain_dicts(strict: bool) -> None:
    agree(lambda clock: MemoryStore(clock=clock), examples=60, steps=40, strict=strict)


def test_a_registry_in_sqlite_agrees_with_plain_dicts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)
        agree(
            lambda clock: SqliteStore(
                Path(folder) / f"{next(numbers)}.sqlite", boot_id="boot-1", clock=clock
            ),
            examples=15,
            steps=30,
        )


def test_a_registry_in_files_agrees_with_plain_dicts() -> None:
    from holdfast.stores.files.store import FilesStore

    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)
        agree(
            lambda clock: FilesStore(
                Path(folder) / str(next(numbers)),
                boot_id="boot-1",
                clock=clock,
                folders={"network": "."},
            ),
            examples=8,
            steps=25,
        )


def test_a_registry_in_postgresql_agrees_with_plain_dicts(postgres_url: str) -> None:
    from holdfast.stores.postgres import open_postgres

    numbers = count(1)
    agree(
        lambda _: open_postgres(postgres_url, namespace=f"w{next(numbers)}"), examples=8, steps=25
    )
