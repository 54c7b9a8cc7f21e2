"""A registry folder of another program: it is adopted as it is and used, and that program can still
read it.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import RegistryManager
from holdfast.kernel.errors import Corrupt, RegistryCorruption

HOSTS = {
    "web-1": {
        "primary_ip": "10.1.0.1/24",
        "connected_to": "router-1",
        "mac_address": "02:00:00:00:00:01",
        "created_at": 1730000000.25,
        "registered_at_timestamp": 1730000000.5,
        "rack": {"row": 4, "unit": "b"},
    },
    "web-2": {
        "primary_ip": "10.1.0.2/24",
        "connected_to": "router-1",
        "mac_address": "02:00:00:00:00:02",
        "created_at": 1730000001.0,
        "registered_at_timestamp": 1730000001.0,
    },
}
LEASES = {
    "web-1": {
        "router": "router-1",
        "leases": [
            {
                "run_id": "old-run",
                "pid": 4242,
                "job_type": "quick",
                "dscp": 12,
                "allocated_at": 1730000002.125,
                "note": "x",
            }
        ],
    }
}
NEIGHBORS = {
    "web-1:10.1.0.254": {
        "host_name": "web-1",
        "neighbor_ip": "10.1.0.254",
        "leases": [{"run_id": "old-run", "pid": 4242, "allocated_at": 1730000003.0}],
    }
}
FILES = {"hosts.json": HOSTS, "host_leases.json": LEASES, "neighbor_leases.json": NEIGHBORS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the other program left when it was stopped."""
    folder = tmp_path / "lab"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def manager(folder: Path) -> Iterator[RegistryManager]:
    with RegistryManager({"registry_manager": {"registry_dir": str(folder)}}) as made:
        yield made


def shown(folder: Path, name: str) -> Any:
    """A file as other programs read it: by jq, where there is one."""
    path = folder / name
    if jq := shutil.which("jq"):
        return json.loads(
            subprocess.run([jq, ".", str(path)], check=True, capture_output=True, text=True).stdout
        )
    return json.loads(path.read_text())


def test_what_is_there_counts(manager: RegistryManager) -> None:
    assert manager.list_all_hosts() == HOSTS
    assert manager.get_host_lease_count("web-1") == 1
    assert not manager.check_and_register_host(
        "web-3", "10.1.0.2/16", "router-1", "02:00:00:00:00:03"
    )
    assert not manager.check_and_register_host(
        "web-3", "10.1.0.3/24", "router-1", "02-00-00-00-00-01"
    )
    assert manager.release_neighbor_lease("old-run", "web-1", "10.1.0.254") == (0, True)


def test_looking_changes_no_file(folder: Path, manager: RegistryManager) -> None:
    manager.list_all_hosts()
    manager.list_host_leases()
    assert {name: (folder / name).read_text() for name in FILES} == {
        name: json.dumps(content) for name, content in FILES.items()
    }


def test_work_keeps_the_form_and_what_it_does_not_know(
    folder: Path, manager: RegistryManager
) -> None:
    assert manager.check_and_register_host(
        "web-3", "10.1.0.3/24", "router-1", "02:00:00:00:00:03", {"rack": 5}
    )
    assert manager.acquire_source_host_lease("run-1", "web-1", "detailed", "router-1", dscp=3) == 2
    assert manager.release_source_host_lease("run-1", "web-1") == (1, False)
    assert manager.acquire_neighbor_lease("run-1", "web-2", "10.1.0.253") == 1
    hosts = shown(folder, "hosts.json")
    assert {name: hosts[name] for name in HOSTS} == HOSTS
    assert set(hosts["web-3"]) == {
        "primary_ip",
        "connected_to",
        "mac_address",
        "created_at",
        "registered_at_timestamp",
        "rack",
    }
    assert shown(folder, "host_leases.json") == LEASES
    neighbors = shown(folder, "neighbor_leases.json")
    assert neighbors["web-1:10.1.0.254"] == NEIGHBORS["web-1:10.1.0.254"]
    entry = neighbors["web-2:10.1.0.253"]
    assert (entry["host_name"], entry["neighbor_ip"], entry["leases"][0]["run_id"]) == (
        "web-2",
        "10.1.0.253",
        "run-1",
    )


def test_a_file_shows_who_holds_a_router(folder: Path, manager: RegistryManager) -> None:
    sign = folder / "locks" / "router_router-1"
    with manager.router_lock("router-1", "job-1"):
        assert json.loads(sign.read_text())["job_id"] == "job-1"
    assert not sign.exists()


def test_the_folder_for_locks_may_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    with (
        RegistryManager(
            {"registry_dir": str(folder), "lock_dir": str(tmp_path / "signs")}
        ) as manager,
        manager.router_lock("router-1", "job-1"),
    ):
        assert (tmp_path / "signs" / "router_router-1").exists()


def test_what_a_caller_does_to_an_answer_reaches_nobody(
    folder: Path, manager: RegistryManager
) -> None:
    info = manager.get_host_info("web-1")
    assert info is not None
    info["rack"]["row"] = 99
    assert manager.get_host_info("web-1") == HOSTS["web-1"]
    manager.check_and_register_host("web-3", "10.1.0.3/24", "router-1", "02:00:00:00:00:03")
    assert shown(folder, "hosts.json")["web-1"] == HOSTS["web-1"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "overwritten": lambda path: path.write_bytes(b"\x00\xff" * 300),
    "another kind of value": lambda path: path.write_text("[1, 2]"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_set_aside_restored_and_reported_once(
    folder: Path, name: str, damage: str
) -> None:
    config = {"registry_dir": str(folder)}
    with RegistryManager(config) as manager:
        manager.check_and_register_host("web-3", "10.1.0.3/24", "router-1", "02:00:00:00:00:03")
        manager.acquire_source_host_lease("run-1", "web-1", "quick", "router-1", pid=None)
        manager.acquire_neighbor_lease("run-1", "web-2", "10.1.0.253", pid=None)
    DAMAGES[damage](folder / name)
    with RegistryManager(config) as manager:
        reported = []
        for _ in range(2):
            for look in (manager.list_all_hosts, manager.list_host_leases, lambda: manager.sweep()):
                try:
                    look()
                except RegistryCorruption as error:
                    reported.append(error)
        (found,) = reported
        assert found.fields["restored"] is True
        assert name in found.message
        # The version before the last change.
        assert set(HOSTS) <= set(manager.list_all_hosts())
        assert manager.get_host_lease_count("web-1") >= 1
        assert manager.check_and_register_host(
            "web-9", "10.1.0.9/24", "router-1", "02:00:00:00:00:09"
        )
    assert list(folder.glob(f"{name}.corrupt-*")) or damage == "gone"


def test_a_damaged_record_hides_no_other(folder: Path) -> None:
    hosts = {**HOSTS, "bad": {"primary_ip": 7}}
    (folder / "hosts.json").write_text(json.dumps(hosts))
    with RegistryManager({"registry_dir": str(folder)}) as manager:
        assert manager.get_host_info("web-1") == HOSTS["web-1"]
        with pytest.raises(RegistryCorruption, match="bad"):
            manager.get_host_info("bad")
        damaged: list[Corrupt] = []
        assert manager.list_all_hosts(damaged=damaged) == HOSTS
        assert [error.fields["key"] for error in damaged] == ["bad"]
        assert manager.counts().hosts == 3
        assert manager.acquire_source_host_lease("run-1", "web-2", "quick", "router-1") == 1
    assert shown(folder, "hosts.json") == hosts


def test_one_damaged_entry_hides_neither_the_leases_of_another_host_nor_the_sweep(
    folder: Path,
) -> None:
    damaged = {**LEASES, "web-2": {"router": 1, "leases": []}}
    (folder / "host_leases.json").write_text(json.dumps(damaged))
    with RegistryManager({"registry_dir": str(folder)}) as manager:
        assert list(manager.list_host_leases("web-1")) == ["web-1"]
        assert manager.sweep() == (0, 0)
        with pytest.raises(RegistryCorruption, match="web-2"):
            manager.list_host_leases()


def test_the_folders_of_another_store_are_not_those_of_a_registry(
    folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text(
        f'store = "files:main"\n[files.folders]\nnetwork = "{tmp_path}/elsewhere"\n'
    )
    with RegistryManager({"registry_dir": str(folder)}) as manager:
        assert sorted(manager.list_all_hosts()) == ["web-1", "web-2"]
    with RegistryManager({"registry_dir": "main"}) as manager:
        assert manager.check_and_register_host("a", "10.9.0.1", "router-1", "02:00:00:00:09:01")
    assert list(shown(tmp_path / "elsewhere", "hosts.json")) == ["a"]
