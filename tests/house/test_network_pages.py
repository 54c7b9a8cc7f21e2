"""The pages about the registry say what there is: every command, call, key and step."""

import inspect
import re
from pathlib import Path

import click
from msgspec.structs import fields

from holdfast.domains.network import Registry, RegistryConfig
from holdfast.kernel.limits import BATCH_MAX, HOLD_LEASE_S, LEASES_PER_HOST_MAX, LOCK_NAMES_MAX
from holdfast.kernel.settings import LockTimeouts
from holdfast.runtime.metrics.families import COUNTED
from holdfast.surfaces.cli.network import network

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "network.md").read_text()


def test_the_guide_names_every_group_and_no_other() -> None:
    assert set(re.findall(r"holdfast network (\w+)", PAGE)) == set(network.commands)


def test_the_guide_names_every_verb() -> None:
    missing = [
        f"{name} {verb}"
        for name, group in network.commands.items()
        if isinstance(group, click.Group)
        for verb in group.commands
        if f"{name} {verb}" not in PAGE
    ]
    assert missing == []


def test_the_guide_lists_every_key_of_the_configuration() -> None:
    keys = [field.name for field in fields(RegistryConfig) if field.name != "lock_timeouts"]
    keys += [f"lock_timeouts.{field.name}" for field in fields(LockTimeouts)]
    assert [key for key in keys if f"| `{key}` |" not in PAGE] == []


def test_the_guide_lists_every_call() -> None:
    section = PAGE.partition("## Every call")[2]
    calls = [
        name
        for name, _ in inspect.getmembers(Registry, inspect.isfunction)
        if not name.startswith("_")
    ]
    assert [name for name in calls if f"`{name}(" not in section and name != "close"] == []


def test_every_journalled_step_is_drawn() -> None:
    page = (
        (ROOT / "docs" / "state_machines.md")
        .read_text()
        .partition("\n## A host and its leases\n")[2]
        .partition("\n## ")[0]
    )
    drawn = set(re.findall(r"\b(?:host|host_lease|neighbor_lease)\.\w+", page))
    leases = {
        f"{kind}.{step}"
        for kind in ("host_lease", "neighbor_lease")
        for step in ("taken", "dropped", "swept")
    }
    assert drawn == {"host.registered", "host.unregistered", *leases}


def test_the_bounds_are_those_of_the_program() -> None:
    page = " ".join(PAGE.split())
    assert f"at most {LEASES_PER_HOST_MAX} leases, and a batch at most {BATCH_MAX} entries" in page
    assert f"may name {LOCK_NAMES_MAX} routers" in page
    assert {600: "ten minutes after its last sign of life"}[int(HOLD_LEASE_S)] in page


def test_everything_that_locks_count_is_exposed() -> None:
    from holdfast.primitives.locks.statistics import LockStatistics

    plain = {
        field.name
        for field in fields(LockStatistics)
        if field.type is int and field.name != "schema_version"
    }
    assert set(COUNTED) == plain
