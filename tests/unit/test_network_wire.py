"""The registry in plain files: written data is read again, other programs' data survives, and
damage is reported.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domains.network.records import (
    NEVER,
    Host,
    HostLease,
    HostLeases,
    NeighborLeases,
    RunLease,
)
from holdfast.domains.network.wire import (
    HOST_LEASES,
    HOST_LEASES_FILE,
    HOSTS,
    HOSTS_FILE,
    NEIGHBOR_LEASES,
    NEIGHBOR_LEASES_FILE,
    OWN_MEMBER,
    ROUTER_SIGN,
    read_host,
    read_host_leases,
    read_neighbor_leases,
    write_host,
    write_host_leases,
    write_neighbor_leases,
)
from holdfast.kernel.codec import to_plain
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.primitives.locks.records import Lock, LockHold, Mode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
moments = st.none() | st.integers(0, 2**33) | st.floats(0, 2**33) | texts
instants = st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
processes = st.builds(
    Holder,
    host_id=texts,
    boot_id=texts,
    pid_ns=st.integers(1, 9),
    pid=st.integers(1, 9),
    start_ticks=st.integers(0, 9),
    label=texts,
)
leases = st.builds(
    lambda at, length, explicit: Lease(
        granted_at=at, expires_at=at + timedelta(seconds=length), explicit=explicit
    ),
    instants,
    st.integers(1, 10**6),
    st.booleans(),
)
numbers = st.none() | st.integers(1, 2**31)


def more(*taken: str) -> st.SearchStrategy[dict[str, Any]]:
    """What another program may keep beside these names."""
    return st.dictionaries(texts.filter(lambda name: name not in taken), values, max_size=3)


hosts = st.builds(
    Host,
    primary_ip=texts,
    connected_to=texts,
    mac_address=texts,
    created_at=moments,
    registered_at_timestamp=moments,
    more=more("primary_ip", "connected_to", "mac_address", "created_at", "registered_at_timestamp"),
)
_LEASE = {
    "by": texts,
    "lease": leases,
    "process": st.none() | processes,
    "pid": numbers,
    "allocated_at": moments,
}
host_leases = st.builds(
    HostLeases,
    router=texts,
    leases=st.lists(
        st.builds(
            HostLease,
            **_LEASE,
            job_type=texts,
            dscp=st.none() | st.integers(0, 63),
            more=more("run_id", "pid", "job_type", "dscp", "allocated_at", OWN_MEMBER),
        ),
        max_size=3,
    ).map(tuple),
    more=more("router", "leases"),
)
neighbor_leases = st.builds(
    NeighborLeases,
    host_name=texts,
    neighbor_ip=texts,
    leases=st.lists(
        st.builds(RunLease, **_LEASE, more=more("run_id", "pid", "allocated_at", OWN_MEMBER)),
        max_size=3,
    ).map(tuple),
    more=more("host_name", "neighbor_ip", "leases"),
)


def through_a_file(document: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document))


@given(hosts)
def test_a_host_comes_back(host: Host) -> None:
    assert read_host("h", through_a_file(write_host(host))) == host


@given(host_leases)
def test_a_hosts_leases_come_back(record: HostLeases) -> None:
    assert read_host_leases("h", through_a_file(write_host_leases(record))) == record


@given(neighbor_leases)
def test_a_neighbours_leases_come_back(record: NeighborLeases) -> None:
    assert read_neighbor_leases("k", through_a_file(write_neighbor_leases(record))) == record


OLD_HOST = {
    "primary_ip": "10.1.1.100/24",
    "connected_to": "hq-gw",
    "mac_address": "02:00:0a:01:01:64",
    "created_at": 1700000000.25,
    "registered_at_timestamp": 1700000000.5,
    "secondary_ips": [],
    "sim_namespace": "h-1",
}
OLD_LEASES = {
    "router": "hq-gw",
    "leases": [
        {
            "run_id": "run-1",
            "pid": 4242,
            "job_type": "detailed",
            "dscp": None,
            "allocated_at": 1700000000.125,
            "note": "x",
        },
        {
            "run_id": "run-2",
            "pid": None,
            "job_type": "quick",
            "dscp": 32,
            "allocated_at": 1700000001,
        },
    ],
    "comment": {"by": "hand"},
}
OLD_NEIGHBORS = {
    "host_name": "h-1",
    "neighbor_ip": "10.1.1.1",
    "leases": [{"run_id": "run-1", "pid": 4242, "allocated_at": 1700000000.125}],
}


def test_what_the_old_system_wrote_is_read_kept_and_written_as_it_was() -> None:
    assert write_host(read_host("h-1", OLD_HOST)) == OLD_HOST
    assert write_host_leases(read_host_leases("h-1", OLD_LEASES)) == OLD_LEASES
    assert (
        write_neighbor_leases(read_neighbor_leases("h-1:10.1.1.1", OLD_NEIGHBORS)) == OLD_NEIGHBORS
    )


def test_a_lease_of_the_old_system_lasts_until_it_is_released() -> None:
    first = read_host_leases("h-1", OLD_LEASES).leases[0]
    assert (first.by, first.pid, first.process) == ("run-1", 4242, None)
    assert first.lease == Lease(
        granted_at=datetime.fromtimestamp(1700000000.125, UTC), expires_at=NEVER
    )


@given(st.sampled_from([math.inf, math.nan, 1e300, -1e300, 10**30]))
def test_a_time_beyond_the_calendar_is_no_reason_to_lose_a_lease(when: float) -> None:
    record = read_neighbor_leases(
        "k", {**OLD_NEIGHBORS, "leases": [{"run_id": "r", "pid": 1, "allocated_at": when}]}
    )
    assert record.leases[0].lease.expires_at == NEVER


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (read_host, {}),
        (read_host, {**OLD_HOST, "primary_ip": 7}),
        (read_host, {**OLD_HOST, "created_at": []}),
        (read_host_leases, {"leases": []}),
        (read_host_leases, {"router": "r", "leases": 7}),
        (read_host_leases, {"router": "r", "leases": ["x"]}),
        (read_host_leases, {"router": "r", "leases": [{}]}),
        (read_host_leases, {"router": "r", "leases": [{"run_id": "x", "pid": "1"}]}),
        (
            read_host_leases,
            {"router": "r", "leases": [{"run_id": "x", OWN_MEMBER: {"process": 1}}]},
        ),
        (read_neighbor_leases, {"leases": []}),
        (read_neighbor_leases, {**OLD_NEIGHBORS, "leases": [None]}),
    ],
)
def test_an_invalid_document_is_refused(read: Any, document: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        read("k", document)


def test_every_space_is_laid_out_in_its_file() -> None:
    assert (HOSTS.layout, HOST_LEASES.layout, NEIGHBOR_LEASES.layout) == (
        HOSTS_FILE,
        HOST_LEASES_FILE,
        NEIGHBOR_LEASES_FILE,
    )
    files = [layout.name for layout in (HOSTS_FILE, HOST_LEASES_FILE, NEIGHBOR_LEASES_FILE)]
    assert files == ["hosts.json", "host_leases.json", "neighbor_leases.json"]
    assert ROUTER_SIGN.name == "router_{key}"


def test_a_router_shows_its_holder() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    process = Holder(host_id="h", boot_id="b", pid_ns=1, pid=42, start_ticks=7)
    lease = Lease(granted_at=at, expires_at=NEVER)
    one = LockHold(
        id="1", by="job-1", mode=Mode.EXCLUSIVE, names=("r",), lease=lease, process=process
    )
    two = LockHold(id="2", by="job-2", mode=Mode.SHARED, names=("r",), lease=lease, process=None)
    assert ROUTER_SIGN.show(Lock()) is None
    shown = {
        "job_id": "job-1",
        "mode": "exclusive",
        "pid": 42,
        "since": "2026-01-01T00:00:00.000000Z",
    }
    assert ROUTER_SIGN.show(Lock(holds=(one,))) == shown
    many = ROUTER_SIGN.show(Lock(holds=(one, two)))
    assert many is not None
    assert [holder["job_id"] for holder in many["holders"]] == ["job-1", "job-2"]
    assert to_plain(many) == many


def test_bad_addresses_of_others_are_indexed_by_their_text() -> None:
    """Another program may have written anything; it is shown, and nothing else stumbles over it."""
    assert HOSTS.indexes["ip"](Host(primary_ip="?", connected_to="r", mac_address="?")) == ("?",)
    assert HOSTS.index_keys(Host(primary_ip="x" * 5000, connected_to="r", mac_address="y" * 5000))
