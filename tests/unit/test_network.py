"""The registry: each public call, each of its results and refusals, on every store and on a clock
of the test's.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.network import Registry, Swept, leases
from holdfast.domains.network.records import HostLease, HostLeases, new_lease
from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
from holdfast.kernel.errors import (
    Held,
    InvalidName,
    InvalidValue,
    LockTimeout,
    RecordInvalid,
    RegistryCollision,
    RegistryCorruption,
    RegistryDeadlock,
    RegistryError,
    RegistryHeld,
    RegistryLockTimeout,
    RegistryLost,
    RegistryNotFound,
    RegistryUnavailable,
    StoreUnavailable,
)
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import BATCH_MAX, HOLD_LEASE_S, LABEL_CHARS_MAX, LEASES_PER_HOST_MAX
from holdfast.kernel.settings import LockTimeouts, NetworkSettings
from holdfast.kernel.space import Space
from holdfast.primitives.locks.records import LOCKS
from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS
from holdfast.stores.port import spaces_of
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.harness.timeouts import PATIENCE_S
from tests.harness.waiter import Waiter
from tests.unit.network_world import STORES, World, host, world_of


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def registry(world: World) -> Registry:
    return world.registry


@pytest.fixture
def quick_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """One store is enough where the store has no say."""
    with world_of("memory", tmp_path, request) as made:
        yield made


def register(registry: Registry, *numbers: int, router: str = "router-1") -> None:
    registry.register_hosts([host(number, router) for number in numbers])


def lease(
    registry: Registry, run_id: str, host_name: str = "h1", router: str = "router-1", **more: Any
) -> int:
    return registry.acquire_source_host_lease(run_id, host_name, "quick", router, **more)


def runs(registry: Registry, host_name: str = "h1") -> list[str]:
    """Who leases a host and counts; the count must be their number."""
    shown = registry.list_host_leases(host_name).get(host_name, {"leases": []})
    found = [one["run_id"] for one in shown["leases"] if not one["dead"]]
    assert registry.get_host_lease_count(host_name) == len(found)
    return found


# --- hosts ---


def test_a_host_is_registered_once(world: World, registry: Registry) -> None:
    assert registry.check_and_register_host(**host(1), additional_info={"rack": 7, "tags": ["a"]})
    assert not registry.check_and_register_host(**host(1))
    info = registry.get_host_info("h1")
    assert info is not None
    assert info["registered_at_timestamp"] == world.clock.now().timestamp()
    assert info["created_at"] == "2026-01-01T00:00:00.000000Z"
    known = {name: value for name, value in host(1).items() if name != "host_name"}
    assert {name: info[name] for name in known} == known
    assert (info["rack"], info["tags"]) == (7, ["a"])
    assert registry.list_all_hosts() == {"h1": info}
    assert world.logged() == [("host.registered", "h1")]


def test_a_missing_host_has_no_facts(registry: Registry) -> None:
    assert registry.get_host_info("h1") is None
    assert registry.list_all_hosts() == {}
    assert not registry.unregister_host("h1")
    assert registry.get_host_lease_count("h1") == 0
    assert registry.list_host_leases() == {}
    assert registry.list_host_leases("h1") == {}


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("primary_ip", "10.1.1.1/24", "10.1.1.1/16"),
        ("primary_ip", "10.1.1.1", "10.1.1.1/24"),
        ("primary_ip", "10.1.1.1", "::ffff:10.1.1.1"),
        ("primary_ip", "FE80:0:0::1/64", "fe80::1"),
        ("mac_address", "02:AA:00:00:00:01", "02-aa-00-00-00-01"),
        ("mac_address", "02aa.0000.0001", "02AA00000001"),
    ],
)
def test_addresses_collide_however_they_are_written(
    registry: Registry, field: str, first: str, second: str
) -> None:
    assert registry.check_and_register_host(**{**host(1), field: first})
    assert not registry.check_and_register_host(**{**host(2), field: second})
    with pytest.raises(RegistryCollision) as caught:
        registry.register_host(**{**host(2), field: second})
    assert (caught.value.fields["field"], caught.value.fields["other"]) == (field, "h1")
    assert "h1" in caught.value.message and "h2" in caught.value.message
    assert list(registry.list_all_hosts()) == ["h1"]


def test_an_address_may_be_unique_behind_each_router_alone(world: World) -> None:
    registry = world.process(2, settings=NetworkSettings(ip_uniqueness="router"))
    address = {"primary_ip": "10.1.1.1/24"}
    assert registry.check_and_register_host(**{**host(1), **address, "connected_to": "r1"})
    assert registry.check_and_register_host(**{**host(2), **address, "connected_to": "r2"})
    assert (
        registry.register_hosts(
            [{**host(3), **address, "connected_to": "r3"}, {**host(4), "connected_to": "r3"}]
        )
        == 2
    )
    for router, other in (("r1", "h1"), ("r2", "h2"), ("r3", "h3")):
        with pytest.raises(RegistryCollision) as caught:
            registry.register_host(
                **{**host(5), "primary_ip": "::ffff:10.1.1.1", "connected_to": router}
            )
        assert (caught.value.fields["field"], caught.value.fields["other"]) == ("primary_ip", other)
    with pytest.raises(RegistryCollision) as caught:
        registry.register_hosts(
            [{**host(n), "primary_ip": "10.9.9.9", "connected_to": "r9"} for n in (6, 7)]
        )
    assert caught.value.fields["other"] == "h6"
    # A MAC is a card's, wherever it is.
    with pytest.raises(RegistryCollision) as caught:
        registry.register_host(
            **{**host(8), "mac_address": host(1)["mac_address"], "connected_to": "r8"}
        )
    assert caught.value.fields["field"] == "mac_address"
    assert sorted(registry.list_all_hosts()) == ["h1", "h2", "h3", "h4"]


def test_a_name_collides_too_and_says_so(registry: Registry) -> None:
    register(registry, 1)
    with raises(RegistryCollision, host="h1", field="name", other="h1") as caught:
        registry.register_host(**{**host(2), "host_name": "h1"})
    assert caught.value.fields["field"] == "name"


def test_leases_of_an_unregistered_host_are_free_again(registry: Registry) -> None:
    register(registry, 1)
    assert registry.unregister_host("h1")
    assert not registry.unregister_host("h1")
    assert registry.check_and_register_host(**{**host(1), "host_name": "h9"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("primary_ip", bad)
            for bad in (
                "",
                "10.0.0",
                "10.0.0.256",
                "10.0.0.1/33",
                "router",
                " 10.0.0.1",
                167772161,
                None,
            )
        ),
        *(
            ("mac_address", bad)
            for bad in ("", "02:00:00:00:00", "02:00:00:00:00:0g", "02:00-00:00:00:01", None)
        ),
        *(("host_name", bad) for bad in ("", "a:b", "../x", "a/b", "é", "x" * 129, None)),
        *(("connected_to", bad) for bad in ("", "a\nb", None)),
        *(("additional_info", bad) for bad in ({"a": object()}, ["a"], {"a": {1, object()}})),
    ],
)
def test_a_wrong_argument_is_a_value_error_and_changes_nothing(
    quick_world: World, field: str, value: Any
) -> None:
    for call in (quick_world.registry.check_and_register_host, quick_world.registry.register_host):
        with pytest.raises(ValueError):
            call(**{**host(1), field: value})
    assert quick_world.registry.list_all_hosts() == {}


def test_additional_information_never_overwrites_what_is_core(
    quick_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    registry = quick_world.registry
    more = {
        "primary_ip": "1.1.1.1",
        "mac_address": "x",
        "connected_to": "y",
        "created_at": 1,
        "schema_version": 9,
        "n": 1,
    }
    with caplog.at_level(logging.WARNING, "holdfast.network"):
        assert registry.check_and_register_host(**host(1), additional_info=more)
    info = registry.get_host_info("h1")
    assert info is not None
    assert {name: info[name] for name in host(1) if name != "host_name"} == {
        k: v for k, v in host(1).items() if k != "host_name"
    }
    assert (info["schema_version"], info["n"], info["created_at"]) == (
        9,
        1,
        "2026-01-01T00:00:00.000000Z",
    )
    assert "primary_ip" in caplog.text


def test_a_batch_of_hosts_is_all_or_nothing(world: World, registry: Registry) -> None:
    register(registry, 5)
    before = world.records()
    with raises(RegistryCollision, field="primary_ip", other="h5"):
        registry.register_hosts(
            [host(1), host(2), {**host(3), "primary_ip": host(5)["primary_ip"]}]
        )
    with raises(RegistryCollision, field="mac_address", other="h1"):
        registry.register_hosts([host(1), {**host(2), "mac_address": host(1)["mac_address"]}])
    with pytest.raises(InvalidValue):
        registry.register_hosts([host(1), {**host(2), "primary_ip": "no"}])
    assert world.records() == before
    assert world.logged() == [("host.registered", "h5")]
    assert registry.register_hosts([host(1), host(2)]) == 2
    assert registry.register_hosts([]) == 0
    assert list(registry.list_all_hosts()) == ["h1", "h2", "h5"]


@pytest.mark.parametrize("bad", [{}, {"host_name": "h"}, {**host(1), "mask": 1}, "h1", None])
def test_a_refused_batch_names_the_invalid_part(quick_world: World, bad: Any) -> None:
    with pytest.raises(InvalidValue, match="host_name, primary_ip"):
        quick_world.registry.register_hosts([bad])
    with pytest.raises(InvalidValue, match="host_name, job_type"):
        quick_world.registry.acquire_source_host_leases("run", [bad])


def test_a_batch_has_a_bound(quick_world: World) -> None:
    with pytest.raises(InvalidValue, match=str(BATCH_MAX)):
        quick_world.registry.register_hosts([host(number) for number in range(BATCH_MAX + 1)])
    with pytest.raises(InvalidValue, match=str(BATCH_MAX)):
        quick_world.registry.acquire_source_host_leases("run", [{}] * (BATCH_MAX + 1))


def test_a_leased_host_is_not_unregistered_unless_forced(world: World, registry: Registry) -> None:
    register(registry, 1, 2)
    for run in ("a", "b"):
        lease(registry, run)
    lease(registry, "a", "h2")
    with raises(RegistryHeld, host="h1", holders=["a", "b"]) as caught:
        registry.unregister_host("h1")
    assert isinstance(caught.value, RegistryError) and isinstance(caught.value, Held)
    assert caught.value.fields["holders"] == ["a", "b"]
    assert runs(registry) == ["a", "b"]
    assert registry.unregister_host("h1", force=True)
    assert world.records()["host_leases"].keys() == {"h2"}
    assert ("host_lease.dropped", "h1") in world.logged()
    with pytest.raises(ValueError):
        registry.release_source_host_lease("a", "h1")


def test_leases_of_the_dead_keep_no_host(world: World, registry: Registry) -> None:
    register(registry, 1)
    lease(world.process(2), "run")
    world.kill(2)
    assert registry.unregister_host("h1")
    assert world.records() == {"hosts": {}, "host_leases": {}, "neighbor_leases": {}}
    assert [kind for kind, _ in world.logged()][-2:] == ["host_lease.swept", "host.unregistered"]


# --- leases on hosts ---


def test_the_count_is_the_number_of_runs(world: World, registry: Registry) -> None:
    register(registry, 1)
    assert [lease(registry, run) for run in ("a", "b", "b", "c")] == [1, 2, 2, 3]
    assert runs(registry) == ["a", "b", "c"]
    assert registry.release_source_host_lease("b", "h1") == (2, False)
    assert registry.release_source_host_lease("a", "h1") == (1, False)
    assert registry.release_source_host_lease("c", "h1") == (0, True)
    assert runs(registry) == []
    assert world.records()["host_leases"] == {}
    kinds = [kind for kind, _ in world.logged()]
    assert kinds == ["host.registered", *["host_lease.taken"] * 4, *["host_lease.dropped"] * 3]


def test_a_lease_is_shown_as_its_file_has_it(world: World, registry: Registry) -> None:
    register(registry, 1)
    registry.acquire_source_host_lease("run", "h1", "detailed", "router-1", 46)
    allocated_at = world.clock.now().timestamp()
    world.clock.advance(5)
    registry.acquire_source_host_lease("run", "h1", "quick", "router-1", dscp=10, ttl_s=60)
    assert registry.list_host_leases() == {
        "h1": {
            "router": "router-1",
            "leases": [
                {
                    "run_id": "run",
                    "pid": 1,
                    "job_type": "quick",
                    "dscp": 10,
                    "allocated_at": allocated_at,
                    "expires_at": "2026-01-01T00:01:05.000000Z",
                    "dead": False,
                }
            ],
        }
    }


def test_a_lease_that_is_not_held_cannot_be_released(registry: Registry) -> None:
    register(registry, 1)
    lease(registry, "a")
    for run, name in (("b", "h1"), ("a", "h2")):
        with raises(RegistryNotFound, run_id=run, host=name):
            registry.release_source_host_lease(run, name)
    registry.release_source_host_lease("a", "h1")
    with pytest.raises(ValueError):
        registry.release_source_host_lease("a", "h1")


def test_a_host_that_is_not_registered_cannot_be_leased(registry: Registry) -> None:
    with raises(RegistryNotFound, host="h1"):
        lease(registry, "a")


def test_a_host_is_leased_under_its_own_router(registry: Registry) -> None:
    register(registry, 1)
    with raises(InvalidValue, field="router_name", host="h1", router="router-1"):
        lease(registry, "a", router="router-2")


@pytest.mark.parametrize(
    ("job_type", "dscp"),
    [
        ("slow", None),
        ("", None),
        (None, None),
        *(("quick", bad) for bad in (-1, 64, 1.5, "46", True)),
    ],
)
def test_a_wrong_job_type_or_dscp_is_a_value_error(
    quick_world: World, job_type: Any, dscp: Any
) -> None:
    register(quick_world.registry, 1)
    with pytest.raises(ValueError):
        quick_world.registry.acquire_source_host_lease("run", "h1", job_type, "router-1", dscp)
    assert runs(quick_world.registry) == []


def test_a_batch_of_leases_is_all_or_nothing(world: World, registry: Registry) -> None:
    register(registry, 1, 2, 3)
    wanted = [
        {"host_name": f"h{at}", "job_type": "quick", "router_name": "router-1"} for at in (1, 2, 4)
    ]
    before, logged = world.records(), world.logged()
    with raises(RegistryNotFound, host="h4"):
        registry.acquire_source_host_leases("run", wanted)
    assert (world.records(), world.logged()) == (before, logged)
    lease(registry, "other", "h2")
    assert registry.acquire_source_host_leases("run", wanted[:2]) == {"h1": 1, "h2": 2}
    assert registry.acquire_source_host_leases("run", []) == {}


def test_there_are_only_so_many_leases_on_one_host(
    quick_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASES_PER_HOST_MAX", 3)
    registry = quick_world.registry
    register(registry, 1)
    for number in range(3):
        lease(registry, f"run-{number}")
    with pytest.raises(RegistryError, match="release some"):
        lease(registry, "one-more")
    assert lease(registry, "run-0") == 3


def test_as_many_leases_as_there_may_be_fit_into_a_record() -> None:
    long = "𝄞" * LABEL_CHARS_MAX
    process = Holder(
        host_id=long, boot_id="b" * 36, pid_ns=2**32, pid=2**31, start_ticks=2**40, label=long
    )
    at = ManualClock().now()
    one = HostLease(
        by=long,
        lease=new_lease(at, process, None),
        process=process,
        pid=2**31,
        allocated_at=at.timestamp(),
        job_type="detailed",
    )
    assert HOST_LEASES.encode(HostLeases(router=long, leases=(one,) * LEASES_PER_HOST_MAX))


# --- whose death, and which time, ends a lease ---


def test_a_dead_runs_lease_does_not_count_is_marked_and_is_swept(
    world: World, registry: Registry
) -> None:
    register(registry, 1, 2)
    other = world.process(2)
    lease(other, "dead")
    lease(other, "dead", "h2")
    other.acquire_neighbor_lease("dead", "h1", "10.9.9.9")
    lease(registry, "alive")
    world.kill(2)
    marks = {one["run_id"]: one["dead"] for one in registry.list_host_leases("h1")["h1"]["leases"]}
    assert marks == {"dead": True, "alive": False}
    assert [one["dead"] for one in registry.list_neighbor_leases()["h1:10.9.9.9"]["leases"]] == [
        True
    ]
    assert runs(registry) == ["alive"]
    assert registry.counts() == (2, 1, 0)
    assert registry.sweep() == Swept(2, 1)
    assert registry.sweep() == Swept(0, 0)
    assert world.records()["host_leases"].keys() == {"h1"}
    assert [kind for kind, _ in world.logged()].count("host_lease.swept") == 2


@pytest.mark.parametrize("change", ["acquire", "release"])
def test_the_next_change_of_a_host_sweeps_it(world: World, registry: Registry, change: str) -> None:
    register(registry, 1)
    lease(world.process(2), "dead")
    lease(registry, "alive")
    world.kill(2)
    if change == "acquire":
        assert lease(registry, "next") == 2
    else:
        assert registry.release_source_host_lease("alive", "h1") == (0, True)
    assert ("host_lease.swept", "h1") in world.logged()


def test_a_run_may_release_its_lease_though_its_process_is_dead(
    world: World, registry: Registry
) -> None:
    register(registry, 1)
    lease(world.process(2), "run")
    world.kill(2)
    assert registry.release_source_host_lease("run", "h1") == (0, True)
    with pytest.raises(ValueError):
        registry.release_source_host_lease("run", "h1")


def test_a_lease_may_belong_to_another_process_or_to_none(world: World, registry: Registry) -> None:
    register(registry, 1)
    world.machine.begin(7)
    lease(registry, "theirs", pid=7)
    lease(registry, "nobodys", pid=None)
    pids = {one["run_id"]: one["pid"] for one in registry.list_host_leases()["h1"]["leases"]}
    assert pids == {"theirs": 7, "nobodys": None}
    world.kill(7)
    world.clock.advance(10 * 365 * 24 * 3600)
    assert runs(registry) == ["nobodys"]
    with raises(RegistryNotFound, pid=8):
        lease(registry, "x", pid=8)


def test_a_lease_with_a_time_to_live_ends_by_it_though_its_process_lives(
    world: World, registry: Registry
) -> None:
    register(registry, 1)
    lease(registry, "timed", ttl_s=60)
    lease(registry, "untimed")
    registry.acquire_neighbor_lease("timed", "h1", "10.9.9.9", ttl_s=60)
    world.clock.advance(60)
    assert runs(registry) == ["timed", "untimed"]
    world.clock.advance(0.001)
    assert runs(registry) == ["untimed"]
    assert registry.sweep() == Swept(1, 1)


def test_the_configured_time_to_live_is_for_every_lease(world: World) -> None:
    registry = world.process(2, settings=NetworkSettings(lease_ttl_s=30))
    register(registry, 1)
    lease(registry, "a")
    lease(registry, "b", ttl_s=90)
    lease(registry, "c", pid=None)
    registry.acquire_neighbor_lease("a", "h1", "10.9.9.9")
    world.clock.advance(31)
    assert runs(registry) == ["b"]
    assert registry.sweep() == Swept(2, 1)


def test_a_lease_from_another_machine_lasts_while_it_is_renewed(
    world: World, registry: Registry
) -> None:
    register(registry, 1)
    far = world.process(2, machine=Machine("host-2"))
    lease(far, "far")
    # Its background gives no sign any more, as if the machine were gone.
    far.close()
    world.clock.advance(HOLD_LEASE_S)
    assert runs(registry) == ["far"]
    world.clock.advance(1)
    assert runs(registry) == []


def test_signs_of_life_come_from_the_background(world: World, registry: Registry) -> None:
    register(registry, 1)
    far = world.process(2, machine=Machine("host-2"))
    lease(far, "far")
    far.acquire_neighbor_lease("far", "h1", "10.9.9.9")
    world.clock.advance(HOLD_LEASE_S * 0.9)
    mine = list(far._renewer._keeper._held.values())
    assert far._renewer.renew(mine) == []
    world.clock.advance(HOLD_LEASE_S * 0.9)
    assert runs(registry) == ["far"]
    assert registry.sweep() == Swept(0, 0)
    registry.unregister_host("h1", force=True)
    assert [one.key for one in far._renewer.renew(mine)] == ["h1"]


# --- routers ---


def test_a_router_has_one_holder(registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "a")
    assert registry.is_router_locked("router-1")
    assert not registry.acquire_router_lock("router-1", "b", timeout=0)
    assert not registry.release_router_lock("router-1", "b")
    assert registry.is_router_locked("router-1")
    assert registry.release_router_lock("router-1", "a")
    assert not registry.release_router_lock("router-1", "a")
    assert not registry.is_router_locked("router-1")
    assert registry.acquire_router_lock("router-1", "b", 0)


def test_a_job_that_holds_a_router_gets_it_again_and_one_release_frees_it(
    registry: Registry,
) -> None:
    assert registry.acquire_router_lock("router-1", "a")
    assert registry.acquire_router_lock("router-1", "a", timeout=0)
    assert registry.release_router_lock("router-1", "a")
    assert not registry.is_router_locked("router-1")


def test_a_router_is_a_resource_of_the_lock_manager(world: World, registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "a")
    (hold,) = world.locks_of(registry).explain("router-1").status.holds
    assert hold.by == "a"
    other = world.process(2)
    assert world.locks_of(other).status("router-1").holds == (hold,)
    assert other.release_router_lock("router-1", "a")


def test_all_routers_or_none(registry: Registry) -> None:
    assert registry.acquire_all_router_locks_atomic(["r1", "r2", "r1"], "a")
    assert not registry.acquire_all_router_locks_atomic(["r3", "r2"], "b", timeout=0)
    assert not registry.is_router_locked("r3")
    assert registry.release_all_router_locks(["r1", "r2", "r3", "r1"], "b") == 0
    assert registry.release_all_router_locks(["r1", "r2", "r3"], "a") == 2
    assert registry.acquire_all_router_locks_atomic(["r3", "r2"], "b", timeout=0)
    assert registry.release_all_router_locks(["r2"], "b") == 1
    assert registry.is_router_locked("r3") and not registry.is_router_locked("r2")
    assert registry.release_router_lock("r3", "b")


def test_routers_of_callers_that_need_the_grant(world: World, registry: Registry) -> None:
    grant = registry.lock_routers(["r1", "r2"], "a", ttl_s=60, pid=None)
    assert grant.names == ("r1", "r2") and set(grant.tokens) == {"r1", "r2"}
    assert registry.lock_routers(["r1"], "a", 0, ttl_s=60, pid=None).reentered
    with pytest.raises(RegistryLockTimeout) as late:
        registry.lock_routers(["r2", "r3"], "b", 0, ttl_s=60, pid=None)
    assert [one["by"] for one in late.value.fields["holders"]] == ["a"]
    obstruction = registry.wait_routers_free(["r1"], 0)
    assert obstruction is not None and [one.by for one in obstruction.holders] == ["a"]
    assert registry.wait_routers_free(["r1"], 0, job_id="a") is None
    assert [one.name for one in registry.router_status()] == ["r1", "r2"]
    assert [len(one.holds) for one in registry.router_status(["r3", "r1"])] == [0, 1]
    with pytest.raises(RegistryNotFound) as refused:
        registry.unlock_routers(["r1", "r3"], "b")
    assert refused.value.fields == {"names": ["r1", "r3"]}
    assert registry.unlock_routers(["r1", "r2", "r3"], "a") == ("r1", "r2")
    assert registry.wait_routers_free(["r1", "r2"], float("inf")) is None
    with pytest.raises(InvalidValue):
        registry.lock_routers(["r1"], "a", pid=None)


def test_a_wait_for_routers_ends_when_its_descriptor_is_readable(registry: Registry) -> None:
    registry.lock_routers(["r1"], "a", ttl_s=60, pid=None)
    stop, write = os.pipe()
    os.write(write, b"x")
    with open(stop, "rb"), open(write, "wb"):
        assert registry.wait_routers_free(["r1"], PATIENCE_S, stop_fd=stop) is not None
        with pytest.raises(RegistryLockTimeout):
            registry.lock_routers(["r1"], "b", PATIENCE_S, ttl_s=60, pid=None, stop_fd=stop)


def test_a_detached_claim_needs_a_time_where_its_process_cannot_be_seen(world: World) -> None:
    registry = world.registry
    register(registry, 1)
    world.machine.begin(7)
    calls: list[Callable[..., object]] = [
        lambda **more: registry.lock_routers(["router-1"], "run-1", 0, **more),
        lambda **more: registry.lease_hosts("run-1", ["h1"], "quick", **more),
        lambda **more: registry.acquire_neighbor_lease("run-1", "h1", "10.0.0.9", **more),
    ]
    for call in calls:
        if world.store.embedded:
            call(pid=7, detached=True)
        else:
            with pytest.raises(InvalidValue) as refused:
                call(pid=7, detached=True)
            assert refused.value.fields["field"] == "ttl_s"
        call(pid=7, ttl_s=60, detached=True)


def test_hosts_are_leased_under_their_own_routers(registry: Registry) -> None:
    register(registry, 1)
    register(registry, 2, router="router-2")
    assert registry.lease_hosts("run-1", ["h1", "h2", "h1"], "quick") == {"h1": 1, "h2": 1}
    leases = registry.list_host_leases()
    assert [leases[name]["router"] for name in ("h1", "h2")] == ["router-1", "router-2"]
    with pytest.raises(RegistryNotFound):
        registry.lease_hosts("run-2", ["h1", "h3"], "quick")
    with pytest.raises(InvalidValue):
        registry.lease_hosts("run-2", ["h1", "h2"], "quick", router_name="router-1")
    assert runs(registry, "h1") == ["run-1"]


def test_a_host_that_is_not_there_is_not_found(registry: Registry) -> None:
    register(registry, 1)
    register(registry, 2, router="router-2")
    assert registry.get_host("h1") == registry.get_host_info("h1")
    assert list(registry.list_all_hosts(router_name="router-2")) == ["h2"]
    registry.remove_host("h1")
    for call in (registry.get_host, registry.remove_host):
        with pytest.raises(RegistryNotFound) as refused:
            call("h1")
        assert refused.value.fields == {"host": "h1"}


def test_an_empty_set_of_routers_is_granted_at_once(registry: Registry) -> None:
    assert registry.acquire_all_router_locks_atomic([], "a")
    assert registry.release_all_router_locks([], "a") == 0
    assert registry.wait_for_all_routers([])
    with registry.all_router_locks([], "a"):
        pass


def test_a_router_that_was_released_apart_from_its_set_is_not_counted_again(
    world: World, registry: Registry
) -> None:
    assert registry.acquire_all_router_locks_atomic(["r1", "r2"], "a")
    assert registry.release_router_lock("r1", "a")
    assert registry.acquire_router_lock("r1", "b", 0)
    assert registry.release_all_router_locks(["r1", "r2"], "a") == 1
    assert registry.is_router_locked("r1") and not registry.is_router_locked("r2")
    assert registry.release_router_lock("r1", "b")
    assert registry.acquire_all_router_locks_atomic(["r1", "r2"], "a")
    assert registry.release_router_lock("r1", "a") and registry.acquire_router_lock("r1", "a", 0)
    assert registry.release_all_router_locks(["r1", "r2"], "a") == 2


def test_blocks_release_what_they_locked(registry: Registry) -> None:
    with registry.router_lock("router-1", "a") as grant:
        assert registry.is_router_locked("router-1")
        assert grant.token
        with (
            pytest.raises(RegistryLockTimeout, match="a ") as caught,
            registry.router_lock("router-1", "b", timeout=0),
        ):
            pass
        assert isinstance(caught.value, LockTimeout) and isinstance(caught.value, RegistryError)
        assert [(one["resource"], one["by"]) for one in caught.value.fields["holders"]] == [
            ("router-1", "a")
        ]
        assert caught.value.fields["position"] == 1
    with (
        contextlib.suppress(RuntimeError),
        registry.all_router_locks(["router-1", "router-2"], "a"),
    ):
        assert registry.is_router_locked("router-2")
        with (
            pytest.raises(RegistryLockTimeout),
            registry.all_router_locks(["router-3", "router-1"], "b", 0),
        ):
            pass
        raise RuntimeError
    assert not any(registry.is_router_locked(name) for name in ("router-1", "router-2", "router-3"))


def test_the_inner_block_of_a_job_frees_nothing(registry: Registry) -> None:
    with registry.router_lock("router-1", "a"):
        with registry.all_router_locks(["router-1", "router-2"], "a"):
            pass
        assert registry.is_router_locked("router-1") and not registry.is_router_locked("router-2")
    assert not registry.is_router_locked("router-1")


def test_a_release_inside_of_a_block_counts_and_the_block_ends_quietly(registry: Registry) -> None:
    with registry.router_lock("router-1", "a"):
        assert registry.release_router_lock("router-1", "a")
        assert not registry.is_router_locked("router-1")


def test_a_block_whose_lock_was_taken_away_says_so(world: World, registry: Registry) -> None:
    with pytest.raises(RegistryLost), registry.router_lock("router-1", "a"):
        world.locks_of(registry).kick("router-1", why="to see")


def test_quick_jobs_share_a_router_and_a_detailed_one_excludes_them(registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "quick-1", mode="shared")
    assert registry.acquire_router_lock("router-1", "quick-2", mode="shared")
    assert not registry.acquire_router_lock("router-1", "detailed", timeout=0)
    assert registry.wait_for_router("router-1", 0, mode="shared")
    assert not registry.wait_for_router("router-1", 0)
    for job in ("quick-1", "quick-2"):
        assert registry.release_router_lock("router-1", job)
    assert registry.acquire_router_lock("router-1", "detailed", timeout=0)
    assert not registry.acquire_router_lock("router-1", "quick-1", timeout=0, mode="shared")


def test_a_router_lock_may_have_a_time_to_live(world: World, registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "a", ttl_s=60, pid=None)
    world.clock.advance(61)
    assert not registry.is_router_locked("router-1")
    assert registry.acquire_router_lock("router-1", "b", 0)


def test_a_dead_jobs_router_is_free(world: World, registry: Registry) -> None:
    assert world.process(2).acquire_router_lock("router-1", "dead")
    world.kill(2)
    assert not registry.is_router_locked("router-1")
    assert registry.acquire_router_lock("router-1", "b", 0)


def lock(registry: Registry, router: str, job: str, **more: Any) -> Waiter[bool]:
    """Begin to lock a router that another has; returned once it stands in line."""
    return Waiter(
        lambda on_wait: registry.acquire_router_lock(
            router, job, PATIENCE_S, on_wait=on_wait, **more
        )
    )


def test_a_waiter_gets_the_router_when_it_is_released(registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "a")
    waiting = lock(registry, "router-1", "b")
    looking = Waiter(
        lambda on_wait: registry.wait_for_all_routers(["router-1"], PATIENCE_S, on_wait=on_wait)
    )
    assert registry.release_router_lock("router-1", "a")
    assert waiting.result()
    assert registry.release_router_lock("router-1", "b")
    assert looking.result()


def test_the_priority_of_a_kind_of_job_orders_the_line(world: World) -> None:
    registry = world.process(
        2, settings=NetworkSettings(job_priorities={"quick": 10, "detailed": 0})
    )
    assert registry.acquire_router_lock("router-1", "a")
    waiting = {
        "detailed": lock(registry, "router-1", "detailed", job_type="detailed"),
        "quick": lock(registry, "router-1", "quick", job_type="quick"),
        "first": lock(registry, "router-1", "first", priority=20),
    }
    line = [(one.by, one.priority) for one in world.locks_of(registry).status("router-1").queue]
    assert line == [("first", 20), ("quick", 10), ("detailed", 0)]
    assert registry.release_router_lock("router-1", "a")
    for job in ("first", "quick", "detailed"):
        assert waiting[job].result()
        assert registry.release_router_lock("router-1", job)


def test_what_is_raised_within_a_block_is_the_callers_own(registry: Registry) -> None:
    mine = LockTimeout("of another lock")
    with pytest.raises(LockTimeout) as caught, registry.router_lock("router-1", "a"):
        raise mine
    assert caught.value is mine and not registry.is_router_locked("router-1")


def test_a_deadlock_is_detected_at_once(registry: Registry) -> None:
    assert registry.acquire_router_lock("r1", "a")
    assert registry.acquire_router_lock("r2", "b")
    waiting = lock(registry, "r2", "a")
    with raises(RegistryDeadlock, cycle="b waits for r1, held by a; a waits for r2, held by b"):
        registry.acquire_router_lock("r1", "b", PATIENCE_S)
    with pytest.raises(RegistryDeadlock):
        registry.wait_for_router("r1", PATIENCE_S, job_id="b")
    assert registry.release_router_lock("r2", "b")
    assert waiting.result()


def test_waiting_for_a_free_router_takes_nothing(registry: Registry) -> None:
    assert registry.wait_for_router("router-1")
    assert registry.wait_for_all_routers(["router-1", "router-2"], 0)
    assert not registry.is_router_locked("router-1")
    assert registry.acquire_router_lock("router-2", "a")
    assert not registry.wait_for_all_routers(["router-1", "router-2"], 0)
    assert registry.wait_for_all_routers(["router-1", "router-2"], 0, job_id="a")


def test_the_configured_limits_are_those_of_calls_without_one(world: World) -> None:
    times = LockTimeouts(router_lock=0, router_lock_atomic=0)
    registry = world.process(2, settings=NetworkSettings(lock_timeouts=times))
    assert registry.acquire_router_lock("router-1", "a")
    assert not registry.acquire_router_lock("router-1", "b")
    assert not registry.acquire_all_router_locks_atomic(["router-1"], "b")
    assert not registry.wait_for_router("router-1")
    with pytest.raises(RegistryLockTimeout), registry.router_lock("router-1", "b"):
        pass
    with pytest.raises(RegistryLockTimeout), registry.all_router_locks(["router-1"], "b"):
        pass


def test_statistics_of_routers(registry: Registry) -> None:
    assert registry.acquire_router_lock("router-1", "a")
    assert not registry.acquire_router_lock("router-1", "b", 0)
    registry.release_router_lock("router-1", "a")
    one = registry.router_statistics(["router-1", "never"])
    assert (one["router-1"].grants, one["router-1"].timeouts, sum(one["router-1"].hold_counts)) == (
        1,
        1,
        1,
    )
    assert one["never"].grants == 0
    assert list(registry.router_statistics()) == ["router-1"]
    with pytest.raises(InvalidName):
        registry.router_statistics([""])


def test_a_text_is_one_name(world: World) -> None:
    times = LockTimeouts(router_lock=0, router_lock_atomic=60)
    registry = world.process(2, settings=NetworkSettings(lock_timeouts=times))
    registry.register_host("host", "10.0.0.9", "router-1", "02:00:00:00:00:09")
    grant = registry.lock_routers("router-1", "a")
    assert [one.name for one in registry.router_status("router-1")] == ["router-1"]
    assert list(registry.router_statistics("router-1")) == ["router-1"]
    assert registry.lease_hosts("a", "host", "quick") == {"host": 1}
    # The limit for one router, not that for several.
    with pytest.raises(RegistryLockTimeout):
        registry.lock_routers("router-1", "b")
    assert registry.unlock_routers("router-1", "a") == grant.names


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 257, None])
def test_a_wrong_name_of_a_router_or_job_is_refused(quick_world: World, bad: Any) -> None:
    registry = quick_world.registry
    calls: list[Callable[..., bool]] = [
        registry.acquire_router_lock,
        registry.release_router_lock,
    ]
    for call in calls:
        with pytest.raises(InvalidName):
            call("router-1", bad)
        with pytest.raises(InvalidName):
            call(bad, "a") if bad is not None else call("router-1", bad)
    with pytest.raises(InvalidValue):
        registry.acquire_router_lock("router-1", "a", float("nan"))
    with pytest.raises(InvalidValue):
        registry.acquire_router_lock("router-1", "a", mode="mine")


# --- the rule of the router's lock ---


def test_no_host_is_leased_while_another_job_holds_its_router(
    world: World, registry: Registry
) -> None:
    register(registry, 1)
    assert registry.acquire_router_lock("router-1", "detailed")
    with raises(RegistryHeld, router="router-1", holder="detailed") as caught:
        lease(registry, "quick")
    assert isinstance(caught.value, RegistryError)
    assert lease(registry, "detailed") == 1
    assert lease(registry, "detailed/part") == 2
    registry.release_router_lock("router-1", "detailed")
    assert lease(registry, "quick") == 3
    assert registry.acquire_router_lock("router-1", "sharer", mode="shared")
    assert lease(registry, "another") == 4


def test_a_batch_is_refused_for_any_of_its_routers(world: World, registry: Registry) -> None:
    register(registry, 1)
    register(registry, 2, router="router-2")
    assert registry.acquire_router_lock("router-2", "detailed")
    before = world.records()
    with raises(RegistryHeld, router="router-2", holder="detailed"):
        registry.acquire_source_host_leases(
            "quick",
            [
                {"host_name": f"h{at}", "job_type": "quick", "router_name": f"router-{at}"}
                for at in (1, 2)
            ],
        )
    assert world.records() == before


def test_the_lock_of_a_dead_job_refuses_nobody(world: World, registry: Registry) -> None:
    register(registry, 1)
    world.process(2).acquire_router_lock("router-1", "dead")
    world.kill(2)
    assert lease(registry, "quick") == 1


def test_the_routers_lock_may_be_required(world: World) -> None:
    registry = world.process(2, settings=NetworkSettings(require_router_lock=True))
    register(registry, 1)
    with raises(RegistryHeld, router="router-1", holder=None):
        lease(registry, "run")
    for mode in ("shared", "exclusive"):
        assert registry.acquire_router_lock("router-1", "run", mode=mode)
        assert lease(registry, "run") == 1
        registry.release_router_lock("router-1", "run")
    assert registry.release_source_host_lease("run", "h1") == (0, True)


# --- neighbours ---


def test_neighbours_are_counted_by_runs(world: World, registry: Registry) -> None:
    take, drop = registry.acquire_neighbor_lease, registry.release_neighbor_lease
    assert take("a", "h1", "10.0.0.9") == 1
    assert take("a", "h1", "10.0.0.9/24") == 1
    assert take("b", "h1", "10.0.0.9") == 2
    assert take("b", "h2", "10.0.0.9") == 1
    assert take("b", "h1", "FE80::9") == 1
    assert set(world.records()["neighbor_leases"]) == {"h1:10.0.0.9", "h2:10.0.0.9", "h1:fe80::9"}
    shown = registry.list_neighbor_leases()["h1:fe80::9"]
    assert (shown["host_name"], shown["neighbor_ip"]) == ("h1", "fe80::9")
    assert [one["run_id"] for one in shown["leases"]] == ["b"]
    assert drop("c", "h1", "10.0.0.9") == (2, False)
    assert drop("a", "h1", "10.0.0.9") == (1, False)
    assert drop("a", "h1", "10.0.0.9") == (1, False)
    assert drop("b", "h1", "10.0.0.9") == (0, True)
    with raises(RegistryNotFound, run_id="b", host="h1", neighbor_ip="10.0.0.9"):
        drop("b", "h1", "10.0.0.9")


@pytest.mark.parametrize(
    "arguments",
    [("", "h1", "10.0.0.1"), ("a", "a:b", "10.0.0.1"), ("a", "h1", "router"), ("a", "h1", None)],
)
def test_a_wrong_neighbour_is_a_value_error(quick_world: World, arguments: Any) -> None:
    for call in (
        quick_world.registry.acquire_neighbor_lease,
        quick_world.registry.release_neighbor_lease,
    ):
        with pytest.raises(ValueError):
            call(*arguments)


# --- what goes wrong ---


def test_a_store_that_fails_for_a_moment_is_tried_again(
    quick_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreUnavailable("disk", outcome="none")] * 2
    transact = quick_world.store.transact

    def failing(body: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return transact(body, **more)

    monkeypatch.setattr(quick_world.store, "transact", failing)
    assert quick_world.registry.check_and_register_host(**host(1))
    assert quick_world.pauses == [0.1, 0.1]


@pytest.mark.parametrize(
    ("outcome", "more", "tries"),
    [
        ("none", {}, 3),
        ("unknown", {}, 1),
        ("none", {"tried": True}, 1),
        ("none", {"closed": True}, 1),
    ],
)
def test_a_store_that_goes_on_failing_is_a_registry_error(
    quick_world: World,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    more: dict[str, Any],
    tries: int,
) -> None:
    calls = []

    def failing(body: Any, *, timeout_s: float, **_: Any) -> Any:
        calls.append(timeout_s)
        raise StoreUnavailable("the disk is full", outcome=outcome, **more)

    monkeypatch.setattr(quick_world.store, "transact", failing)
    with raises(RegistryUnavailable, outcome=outcome):
        quick_world.registry.register_host(**host(1))
    assert calls == [5.0] * tries


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (LockTimeout("late", outcome="none"), RegistryLockTimeout),
        (RecordInvalid("hosts/h1 is damaged", key="h1"), RegistryCorruption),
    ],
)
def test_what_the_store_raises_comes_out_as_the_registrys(
    quick_world: World, monkeypatch: pytest.MonkeyPatch, raised: Any, kind: type[RegistryError]
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise raised

    for name in ("transact", "get", "read"):
        monkeypatch.setattr(quick_world.store, name, failing)
    registry = quick_world.registry
    for call in (
        lambda: registry.check_and_register_host(**host(1)),
        lambda: registry.get_host_info("h1"),
        registry.list_all_hosts,
        registry.list_host_leases,
        registry.sweep,
        lambda: registry.acquire_neighbor_lease("a", "h1", "10.0.0.1"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.message, caught.value.fields) == (raised.message, raised.fields)


def test_each_kind_of_operation_has_its_own_time_limit(
    quick_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, float] = {}
    transact = quick_world.store.transact

    def noting(body: Any, *, scope: Any, **more: Any) -> Any:
        for space in spaces_of(scope):
            if space is CLOCK_SIGHTINGS:
                continue
            limits[space.name] = more.get("timeout_s", 0)
        return transact(body, scope=scope, **more)

    times = LockTimeouts(host_registry=1, host_leases=2, neighbor_leases=3)
    registry = quick_world.process(2, settings=NetworkSettings(lock_timeouts=times))
    monkeypatch.setattr(quick_world.store, "transact", noting)
    register(registry, 1)
    assert limits == {"hosts": 1}
    lease(registry, "a")
    assert limits == {"hosts": 2, "host_leases": 2}
    registry.acquire_neighbor_lease("a", "h1", "10.0.0.1")
    assert limits["neighbor_leases"] == 3


def test_the_order_of_latches_is_that_of_the_hierarchy() -> None:
    spaces: list[Space[Any]] = [NEIGHBOR_LEASES, LOCKS, HOST_LEASES, HOSTS]
    assert spaces_of(spaces) == [HOSTS, HOST_LEASES, LOCKS, NEIGHBOR_LEASES]


def test_every_change_is_logged_in_one_place(
    quick_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    registry = quick_world.registry
    with caplog.at_level(logging.INFO, "holdfast.network"):
        register(registry, 1)
        lease(registry, "run")
        registry.acquire_router_lock("router-1", "run")
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == [
        "hosts",
        "hosts",
        "routers",
    ]


def test_an_unknown_type_of_job_locks_nothing(world: World) -> None:
    with raises(InvalidValue, field="job_type"):
        world.registry.acquire_router_lock("router-1", "job-1", 0, job_type="bogus")
    assert not world.registry.is_router_locked("router-1")


def test_an_expired_router_lock_cannot_be_released(world: World, registry: Registry) -> None:
    assert registry.acquire_router_lock("r1", "job-1", ttl_s=5)
    assert registry.acquire_all_router_locks_atomic(["r2", "r3"], "job-1", ttl_s=50)
    world.clock.advance(6)
    assert registry.release_router_lock("r1", "job-1") is False
    assert world.process(2).release_all_router_locks(["r2"], "job-1") == 1
    assert registry.acquire_router_lock("r1", "job-2", timeout=0)


def test_a_process_that_is_dead_cannot_be_named(quick_world: World) -> None:
    registry = quick_world.registry
    register(registry, 1)
    calls: list[Callable[[], object]] = [
        lambda: lease(registry, "run-1", pid=77),
        lambda: registry.acquire_neighbor_lease("run-1", "h1", "10.0.0.9", pid=77),
        lambda: registry.acquire_router_lock("router-1", "job-1", pid=77),
    ]
    for call in calls:
        with raises(RegistryNotFound, pid=77) as refused:
            call()
        assert isinstance(refused.value, ValueError)


def test_a_batch_may_come_from_anything_that_can_be_gone_through(quick_world: World) -> None:
    registry = quick_world.registry
    assert registry.register_hosts(host(number) for number in (1, 2)) == 2
    wanted = [
        {"host_name": f"h{n}", "job_type": "quick", "router_name": "router-1"} for n in (1, 2)
    ]
    assert registry.acquire_source_host_leases("run-1", iter(wanted)) == {"h1": 1, "h2": 1}
    for bad in (None, 7, "h1", b"h1", {"host_name": "h3"}):
        with raises(InvalidValue, field="hosts"):
            registry.register_hosts(bad)  # type: ignore[arg-type]
        with raises(InvalidValue, field="leases"):
            registry.acquire_source_host_leases("run-1", bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"deep": (float("-inf"),)}])
def test_what_json_has_no_number_for_is_refused(quick_world: World, value: Any) -> None:
    with raises(InvalidValue, field="additional_info"):
        quick_world.registry.register_hosts([host(1) | {"additional_info": {"load": value}}])
    assert quick_world.registry.list_all_hosts() == {}
