"""RegistryManager: its configuration, and its transaction log."""

import errno
import json
import logging
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import RegistryCorruption, RegistryError, RegistryManager
from holdfast.adapters import journal_mirror
from holdfast.domains.network import RegistryConfig, configured
from holdfast.kernel.errors import InvalidValue, RegistryUnavailable, StoreUnavailable
from holdfast.kernel.limits import LOCK_NAMES_MAX
from holdfast.kernel.settings import LockTimeouts
from tests.unit.network_world import host

FULL = {
    "enabled": True,
    "registry_dir": "/dev/shm/lab",
    "lock_dir": "/dev/shm/lab/locks",
    "lock_timeouts": {
        "host_registry": 5.0,
        "host_leases": 3.0,
        "router_lock": 30.0,
        "router_lock_atomic": 60.0,
        "neighbor_leases": 3.0,
    },
    "retry_attempts": 3,
    "retry_delay": 0.1,
    "enable_transaction_log": True,
    "transaction_log_path": "/var/log/lab/registry_transactions.log",
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:{tmp_path}/store.sqlite"
    monkeypatch.setenv("HOLDFAST_STORE", url)
    return url


def test_a_file_that_cannot_be_read_is_tried_as_often_as_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "lab" / "hosts.json"
    tries = []
    opened = os.open

    def failing(path: Any, *more: Any, **others: Any) -> int:
        if str(path).endswith("hosts.json"):
            tries.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *more, **others)

    with RegistryManager(
        {"registry_dir": str(hosts.parent), "retry_attempts": 4, "retry_delay": 0}
    ) as manager:
        manager.register_host(**host(1))
        # Changed by another, so that it has to be read.
        hosts.write_text(hosts.read_text() + "\n")
        monkeypatch.setattr(os, "open", failing)
        with pytest.raises(RegistryError, match="Input/output error"):
            manager.register_host(**host(2))
        monkeypatch.undo()
    assert len(tries) == 4


def test_a_damaged_file_is_an_error_in_the_managers_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = tmp_path / "lab" / "hosts.json"
    with RegistryManager(
        {"registry_dir": str(hosts.parent), "retry_delay": 0}, logging.getLogger("mine")
    ) as manager:
        for number in (1, 2):
            manager.register_host(**host(number))
        hosts.write_text("{")
        with caplog.at_level(logging.ERROR, "mine"), pytest.raises(RegistryCorruption) as caught:
            manager.get_host_info("h1")
        assert caught.value.fields["restored"] and manager.get_host_info("h1")
    assert [(record.name, record.levelname) for record in caplog.records] == [("mine", "ERROR")]
    assert caught.value.message in caplog.text


def test_leaked_leases_of_an_older_system_end_by_the_configured_time(tmp_path: Path) -> None:
    """They contain only a process id and a start time."""
    folder = tmp_path / "lab"
    folder.mkdir()
    began = [
        ("old", 1700000000.5),
        ("today", time.time()),
        ("unknown", None),
        ("text", "yesterday"),
        ("never", 253402214400),
    ]
    old = [
        {"run_id": run, "pid": 4242, "job_type": "quick", "dscp": None, "allocated_at": at}
        for run, at in began
    ]
    (folder / "host_leases.json").write_text(
        json.dumps({"h1": {"router": "router-1", "leases": old}})
    )
    with RegistryManager({"registry_dir": str(folder)}) as patient:
        assert patient.get_host_lease_count("h1") == 5 and patient.sweep().host_leases == 0
    with RegistryManager({"registry_dir": str(folder), "lease_ttl_s": 86400}) as manager:
        shown = {lease["run_id"]: lease for lease in manager.list_host_leases("h1")["h1"]["leases"]}
        assert [run for run, lease in shown.items() if lease["dead"]] == ["old"]
        assert (
            shown["old"]["expires_at"] == "2023-11-15T22:13:20.500000Z"
            and shown["unknown"]["expires_at"] is None
        )
        assert manager.get_host_lease_count("h1") == 4
        assert manager.sweep().host_leases == 1
    assert json.loads((folder / "host_leases.json").read_text())["h1"]["leases"] == old[1:]


# --- configuration ---


def test_both_forms_of_a_configuration_mean_the_same() -> None:
    chosen = configured({"registry_manager": FULL})
    assert chosen == configured(FULL)
    assert chosen.registry_dir == "/dev/shm/lab"
    assert chosen.lock_timeouts == LockTimeouts()
    assert chosen.logs_all
    assert configured({}) == RegistryConfig()
    assert not configured({}).logs_all


def test_an_applications_whole_configuration_may_be_given(tmp_path: Path) -> None:
    whole: dict[Any, Any] = {
        "web": {"port": 80},
        "enabled": "no",
        7: None,
        "registry_manager": {"registry_dir": str(tmp_path / "lab")},
    }
    with RegistryManager(whole) as manager:
        manager.register_host(**host(1))
    assert list(json.loads((tmp_path / "lab" / "hosts.json").read_text())) == ["h1"]


@pytest.mark.parametrize("given", [None, "lab/signs", "elsewhere/locks"])
def test_the_folder_of_lock_files_is_there_from_the_start(
    tmp_path: Path, given: str | None
) -> None:
    """Other programs list it, and watch it, before any router is locked."""
    config = {
        "registry_dir": str(tmp_path / "lab"),
        **({} if given is None else {"lock_dir": str(tmp_path / given)}),
    }
    folder = tmp_path / (given or "lab/locks")
    with RegistryManager(config) as manager:
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in folder.iterdir() if path.name.startswith("router_")] == []
        manager.acquire_router_lock("router-1", "job")
        assert (folder / "router_router-1").is_file()
        manager.release_router_lock("router-1", "job")
    with RegistryManager(config):
        assert folder.is_dir()


def test_a_folder_of_lock_files_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable) as refused:
        RegistryManager(
            {"registry_dir": str(tmp_path / "lab"), "lock_dir": str(tmp_path / "file" / "locks")}
        )
    assert refused.value.fields["path"] == str(tmp_path / "file" / "locks")


def test_managers_with_different_rules_for_addresses_each_keep_their_own(tmp_path: Path) -> None:
    """Each registration is judged by the rule of its own manager; existing hosts stay."""
    folder = {"registry_dir": str(tmp_path / "lab")}
    address = {"primary_ip": "10.0.0.1/24"}
    with (
        RegistryManager({**folder, "ip_uniqueness": "router"}) as loose,
        RegistryManager(folder) as strict,
    ):
        assert loose.check_and_register_host(**{**host(1), **address, "connected_to": "r1"})
        assert not strict.check_and_register_host(**{**host(2), **address, "connected_to": "r2"})
        assert loose.check_and_register_host(**{**host(2), **address, "connected_to": "r2"})
        assert not strict.check_and_register_host(**{**host(3), **address, "connected_to": "r3"})
        assert strict.check_and_register_host(**host(4))
    shown = json.loads((tmp_path / "lab" / "hosts.json").read_text())
    assert {
        name: one["connected_to"]
        for name, one in shown.items()
        if one["primary_ip"] == "10.0.0.1/24"
    } == {
        "h1": "r1",
        "h2": "r2",
    }


def test_a_set_of_routers_may_be_as_large_as_its_bound_and_the_error_names_it(
    tmp_path: Path,
) -> None:
    names = [f"router-{number:04}" for number in range(LOCK_NAMES_MAX)]
    with (
        RegistryManager({"registry_dir": str(tmp_path / "lab")}) as one,
        RegistryManager({"registry_dir": str(tmp_path / "lab")}) as two,
    ):
        assert one.acquire_all_router_locks_atomic(names, "job-1", timeout=0)
        assert len(list((tmp_path / "lab" / "locks").glob("router_*"))) == len(names) > 64
        assert not two.acquire_all_router_locks_atomic(names, "job-2", timeout=0)
        assert one.release_all_router_locks(names, "job-1") == len(names)
        assert two.acquire_all_router_locks_atomic(names, "job-2", timeout=0)
        with pytest.raises(
            InvalidValue, match=f"{LOCK_NAMES_MAX} names, not {LOCK_NAMES_MAX + 1}"
        ) as refused:
            one.acquire_all_router_locks_atomic([*names, "one-more"], "job-1", timeout=0)
        assert refused.value.fields["names_max"] == LOCK_NAMES_MAX


@pytest.mark.parametrize(
    ("said", "logs"),
    [({"transaction_log_path": "x"}, True), ({"transaction_log_path": "x", "enable_transaction_log": False}, False),
     ({"enable_transaction_log": True}, True)],
)  # fmt: skip
def test_a_path_asks_for_the_log_unless_it_is_switched_off(
    said: dict[str, Any], logs: bool
) -> None:
    assert configured(said).logs_all is logs


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"regsitry_dir": "x"}, "regsitry_dir"),
        ({"lock_timeouts": {"router": 1}}, "router"),
        ({"lock_timeouts": {"router_lock": -1}}, "router_lock"),
        ({"lock_timeouts": {"router_lock": "30"}}, "router_lock"),
        ({"enabled": "yes"}, "enabled"),
        ({"retry_attempts": 0}, "retry_attempts"),
        ({"retry_attempts": 101}, "retry_attempts"),
        ({"retry_delay": float("inf")}, "retry_delay"),
        ({"lease_ttl_s": 0}, "lease_ttl_s"),
        ({"job_priorities": {"quick": 10**6}}, "quick"),
        ({"job_priorities": {"quick": "high"}}, "job_priorities"),
        ({"job_priorities": {"qiuck": 10}}, "qiuck"),
        ({"registry_dir": ""}, "registry_dir"),
        ({"registry_dir": "a\0b"}, "registry_dir"),
        ({"lock_dir": "x"}, "lock_dir"),
        ({"ip_uniqueness": "none"}, "ip_uniqueness"),
        ({"registry_manager": {"ip_uniquenes": "router"}, "web": {}}, "ip_uniquenes"),
        ({"web": {"port": 80}}, "web"),
        ({"registry_manager": None}, "registry_manager"),
        ({"registry_manager": {"registry_manager": {}}}, "registry_manager"),
        ([], "registry_manager"),
    ],
)
def test_a_wrong_configuration_names_what_is_wrong(bad: Any, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        RegistryManager(bad)


def test_a_disabled_registry_refuses_every_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    manager = RegistryManager(
        {"enabled": False, "registry_dir": str(tmp_path / "none"), "transaction_log_path": str(log)}
    )
    calls = [
        lambda: manager.check_and_register_host(**host(1)),
        lambda: manager.register_host(**host(1)),
        lambda: manager.register_hosts([host(1)]),
        lambda: manager.unregister_host("h1"),
        lambda: manager.get_host_info("h1"),
        manager.list_all_hosts,
        lambda: manager.acquire_source_host_lease("a", "h1", "quick", "r"),
        lambda: manager.acquire_source_host_leases("a", []),
        lambda: manager.release_source_host_lease("a", "h1"),
        lambda: manager.get_host_lease_count("h1"),
        manager.list_host_leases,
        lambda: manager.acquire_router_lock("r", "a"),
        lambda: manager.release_router_lock("r", "a"),
        lambda: manager.is_router_locked("r"),
        lambda: manager.acquire_all_router_locks_atomic(["r"], "a"),
        lambda: manager.release_all_router_locks(["r"], "a"),
        lambda: manager.router_lock("r", "a").__enter__(),
        lambda: manager.all_router_locks(["r"], "a").__enter__(),
        lambda: manager.wait_for_router("r"),
        lambda: manager.wait_for_all_routers(["r"]),
        manager.router_statistics,
        lambda: manager.acquire_neighbor_lease("a", "h1", "10.0.0.1"),
        lambda: manager.release_neighbor_lease("a", "h1", "10.0.0.1"),
        manager.list_neighbor_leases,
        manager.sweep,
        manager.counts,
    ]
    for call in calls:
        with pytest.raises(RegistryError, match="switched off"):
            call()
    manager.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_it_is_the_store_of_connect() -> None:
    with RegistryManager({}) as manager, holdfast.connect() as hf:
        manager.register_host(**host(1))
        assert hf.network.list_all_hosts() == manager.list_all_hosts()
        assert hf.network.acquire_router_lock("router-1", "a")
        assert manager.is_router_locked("router-1")
        assert hf.locks.explain("router-1").status.holds[0].by == "a"
        assert manager.release_router_lock("router-1", "a")


def test_a_closed_manager_may_be_closed_again() -> None:
    manager = RegistryManager({})
    manager.close()
    manager.close()


def test_what_it_raises_travels_between_processes() -> None:
    with RegistryManager({}) as manager:
        manager.register_host(**host(1))
        with pytest.raises(holdfast.RegistryCollision) as caught:
            manager.register_host(**host(1))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.message, again.fields) == (
        holdfast.RegistryCollision,
        caught.value.message,
        caught.value.fields,
    )


# --- the transaction log ---


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "registry.log"


@pytest.fixture
def manager(log: Path) -> Iterator[RegistryManager]:
    with RegistryManager(
        {"enable_transaction_log": True, "transaction_log_path": str(log)}
    ) as made:
        yield made


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def operations(log: Path) -> list[tuple[str, str]]:
    return [(line["operation"], line["details"]["subject"]) for line in lines(log)]


def test_every_change_is_a_line(manager: RegistryManager, log: Path) -> None:
    manager.register_host(**host(1))
    assert manager.acquire_router_lock("router-1", "run")
    manager.acquire_source_host_lease("run", "h1", "quick", "router-1")
    manager.release_router_lock("router-1", "run")
    assert operations(log) == [
        ("host.registered", "h1"),
        ("lock.granted", "router-1"),
        ("host_lease.taken", "h1"),
        ("lock.released", "router-1"),
    ]
    assert all(set(line) == {"timestamp", "operation", "details"} for line in lines(log))
    assert lines(log)[2]["details"]["run_id"] == "run"
    assert lines(log)[0]["timestamp"].endswith("Z")


def test_what_is_refused_or_not_the_registrys_is_no_line(
    manager: RegistryManager, log: Path
) -> None:
    manager.register_host(**host(1))
    manager.check_and_register_host(**host(1))
    with holdfast.connect() as hf:
        hf.jobs.register_job("x", agent="a", agent_session="s")
    manager.sweep()
    assert operations(log) == [("host.registered", "h1")]


def test_the_log_begins_with_its_manager_and_goes_on_with_the_next(store: str, log: Path) -> None:
    with RegistryManager({}) as before:
        before.register_host(**host(1))
    config = {"transaction_log_path": str(log)}
    with RegistryManager(config) as first:
        first.register_host(**host(2))
    with RegistryManager({}) as between:
        between.register_host(**host(3))
    with RegistryManager(config):
        pass
    assert operations(log) == [("host.registered", "h2"), ("host.registered", "h3")]


def test_a_log_that_cannot_be_written_fails_no_change(
    manager: RegistryManager, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.mkdir()
    with caplog.at_level(logging.WARNING, "holdfast.network"):
        manager.register_host(**host(1))
    assert "transaction log behind" in caplog.text
    log.rmdir()
    manager.register_host(**host(2))
    assert operations(log) == [("host.registered", "h1"), ("host.registered", "h2")]


def test_the_logs_folder_is_made(tmp_path: Path) -> None:
    log = tmp_path / "var" / "log" / "registry.log"
    with RegistryManager({"transaction_log_path": str(log)}) as manager:
        manager.register_host(**host(1))
    assert operations(log) == [("host.registered", "h1")]
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_a_log_whose_folder_cannot_be_made_is_warned_of_and_not_again_with_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = logging.getLogger("mine")
    (tmp_path / "no").touch()
    with caplog.at_level(logging.INFO, "mine"):
        with RegistryManager(
            {"transaction_log_path": str(tmp_path / "no" / "log")}, mine
        ) as manager:
            manager.register_host(**host(1))
            assert "transaction log behind" in caplog.text and "host registered" in caplog.text
            caplog.clear()
            manager.register_host(**host(2))
            assert {record.name for record in caplog.records} == {"mine"}
            assert "transaction log behind" not in caplog.text


def test_a_rotated_log_is_started_again(manager: RegistryManager, log: Path) -> None:
    manager.register_host(**host(1))
    log.rename(log.with_suffix(".1"))
    manager.register_host(**host(2))
    assert operations(log) == [("host.registered", "h2")]
    os.truncate(log, 0)
    manager.register_host(**host(3))
    assert operations(log) == [("host.registered", "h3")]


def test_a_damaged_cursor_repeats_no_line_and_loses_none(
    manager: RegistryManager, log: Path
) -> None:
    manager.register_host(**host(1))
    log.with_name(log.name + ".cursor").write_bytes(b"{")
    manager.register_host(**host(2))
    assert operations(log) == [("host.registered", "h1"), ("host.registered", "h2")]


def test_while_another_copies_that_one_copies_for_all(
    manager: RegistryManager, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second change comes while the first is about to record its position, and the second's own
    try fails.
    """
    second = RegistryManager({"transaction_log_path": str(log)})
    put = journal_mirror._put

    def interrupted(fd: int, mark: Any) -> None:
        put(fd, mark)
        monkeypatch.setattr(journal_mirror, "_put", put)
        second.register_host(**host(2))
        assert operations(log) == [("host.registered", "h1")]

    monkeypatch.setattr(journal_mirror, "_put", interrupted)
    manager.register_host(**host(1))
    assert operations(log) == [("host.registered", "h1"), ("host.registered", "h2")]
    second.close()


def test_a_store_that_cannot_be_opened_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path}")
    with pytest.raises(holdfast.HoldfastError):
        RegistryManager({}).list_all_hosts()
    assert issubclass(RegistryUnavailable, RegistryError)


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.register_host("../x", "no", "r", "no"),
        lambda manager: manager.check_and_register_host(None, None, None, None),
        lambda manager: manager.register_hosts(None),
        lambda manager: manager.acquire_source_host_lease("r", "h", "odd", "r", dscp=99),
        lambda manager: manager.acquire_source_host_leases("r", 7),
        lambda manager: manager.acquire_router_lock("r", "j", job_type="odd"),
        lambda manager: manager.router_lock("r", "j", job_type="odd").__enter__(),
        lambda manager: manager.acquire_neighbor_lease("r", "h", "no"),
        lambda manager: manager.get_host_lease_count("../x"),
    ],
)
def test_a_disabled_registry_refuses_any_arguments(call: Any) -> None:
    with (
        RegistryManager({"enabled": False}) as manager,
        pytest.raises(RegistryError, match="switched off") as refused,
    ):
        call(manager)
    assert not isinstance(refused.value, ValueError)
