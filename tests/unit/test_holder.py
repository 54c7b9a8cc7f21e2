"""The verdict on a holder: alive, dead or unknown, as a table over a process table made up for
it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from holdfast.kernel.holder import (
    Holder,
    Liveness,
    Place,
    Processes,
    ProcessStat,
    probe,
    visible_prefix,
)
from tests.harness.machine import NoTrees

HERE = Place("host-1", "boot-1", 4026531836)
HOLDER = Holder(
    host_id="host-1", boot_id="boot-1", pid_ns=4026531836, pid=42, start_ticks=1000, label="worker"
)
RUNNING = ProcessStat(start_ticks=1000, zombie=False)

ALIVE, DEAD, UNKNOWN = Liveness


class Table(NoTrees):
    """A process table with at most one process in it."""

    def __init__(
        self,
        place: Place = HERE,
        pids: Mapping[int, ProcessStat] = MappingProxyType({42: RUNNING}),
        boots: frozenset[str] = frozenset(),
    ) -> None:
        self.place = place
        self.pids = pids
        self.boots = boots

    def here(self) -> Place:
        return self.place

    def process_stat(self, pid: int) -> ProcessStat | None:
        return self.pids.get(pid)

    def boot_lives(self, boot_id: str) -> bool:
        return boot_id in self.boots

    def current(self, label: str = "") -> Holder:
        raise NotImplementedError

    def of(self, pid: int, label: str = "") -> Holder:
        raise NotImplementedError

    def death(self, holder: Holder) -> int | None:
        raise NotImplementedError


class Blind(Table):
    """A table in whose place the pid means nothing: to look it up is the mistake."""

    def process_stat(self, pid: int) -> ProcessStat | None:
        raise AssertionError("a pid of another place was looked up here")


class Forest(Table):
    """A table whose process trees are all alive, dead or unknown."""

    def __init__(
        self, trees: Liveness, place: Place = HERE, pids: Mapping[int, ProcessStat] | None = None
    ) -> None:
        super().__init__(place, {42: RUNNING} if pids is None else pids)
        self.trees = trees
        self.in_sight: list[bool] = []

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        self.in_sight.append(in_sight)
        return self.trees


NOBODY = Table(pids={})
REUSED = Table(pids={42: ProcessStat(start_ticks=1001, zombie=False)})
EARLIER = Table(pids={42: ProcessStat(start_ticks=999, zombie=False)})
ZOMBIE = Table(pids={42: ProcessStat(start_ticks=1000, zombie=True)})
ELSEWHERE = Table(pids={43: RUNNING})
OTHER_HOST = Blind(HERE._replace(host_id="host-2"))
OTHER_HOST_AND_BOOT = Blind(Place("host-2", "boot-2", HERE.pid_ns))
OTHER_BOOT = Blind(HERE._replace(boot_id="boot-2"))
OTHER_BOOT_AT_WORK = Blind(HERE._replace(boot_id="boot-2"), boots=frozenset({HOLDER.boot_id}))
OTHER_BOOT_AND_NAMESPACE = Blind(Place("host-1", "boot-2", 1))
OTHER_NAMESPACE = Blind(HERE._replace(pid_ns=1))


@pytest.mark.parametrize(
    ("table", "embedded", "shared"),
    [
        pytest.param(Table(), ALIVE, ALIVE, id="running"),
        pytest.param(NOBODY, DEAD, DEAD, id="no such pid"),
        pytest.param(ELSEWHERE, DEAD, DEAD, id="another pid"),
        pytest.param(REUSED, DEAD, DEAD, id="pid reused"),
        pytest.param(EARLIER, DEAD, DEAD, id="pid of an earlier start"),
        pytest.param(ZOMBIE, DEAD, DEAD, id="zombie"),
        pytest.param(OTHER_BOOT, DEAD, UNKNOWN, id="other boot"),
        pytest.param(OTHER_BOOT_AT_WORK, UNKNOWN, UNKNOWN, id="another boot id that is at work"),
        pytest.param(OTHER_BOOT_AND_NAMESPACE, DEAD, UNKNOWN, id="other boot and namespace"),
        pytest.param(OTHER_NAMESPACE, UNKNOWN, UNKNOWN, id="other namespace"),
        pytest.param(OTHER_HOST, UNKNOWN, UNKNOWN, id="other host"),
        pytest.param(OTHER_HOST_AND_BOOT, UNKNOWN, UNKNOWN, id="other host and boot"),
    ],
)
def test_what_can_be_proved_of_a_holder(
    table: Processes, embedded: Liveness, shared: Liveness
) -> None:
    assert probe(HOLDER, table, embedded=True) is embedded
    assert probe(HOLDER, table, embedded=False) is shared


@pytest.mark.parametrize("trees", Liveness)
@pytest.mark.parametrize("embedded", [True, False])
def test_the_tree_decides_where_the_command_is_not_seen_alive(
    trees: Liveness, embedded: bool
) -> None:
    command = msgspec.structs.replace(HOLDER, tree="tree-1")
    dead, hidden = Forest(trees, pids={}), Forest(trees, HERE._replace(pid_ns=1))
    assert [probe(command, one, embedded=embedded) for one in (dead, hidden)] == [trees, trees]
    assert (dead.in_sight, hidden.in_sight) == ([True], [False])
    running = Forest(trees)
    assert probe(command, running, embedded=embedded) is ALIVE
    # The leader is the command alone.
    assert probe(command.leader, dead, embedded=embedded) is DEAD
    assert (len(dead.in_sight), running.in_sight) == (1, [])


def test_a_label_proves_nothing() -> None:
    assert probe(msgspec.structs.replace(HOLDER, label="another"), Table(), embedded=True) is ALIVE


@pytest.mark.parametrize("field", ["host_id", "boot_id", "pid_ns", "pid", "start_ticks"])
def test_no_other_process_is_equal_to_a_holder(field: str) -> None:
    other: object = 7 if isinstance(getattr(HOLDER, field), int) else "other"
    assert msgspec.structs.replace(HOLDER, **{field: other}) != HOLDER


def test_a_holder_knows_its_place() -> None:
    assert HOLDER.place == HERE


def test_a_holder_is_a_value_that_travels_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(HOLDER), type=Holder) == HOLDER
    with pytest.raises(AttributeError):
        HOLDER.pid = 1  # type: ignore[misc]


def test_a_process_that_is_hidden_from_us_is_unknown() -> None:
    hidden = Table(pids={42: ProcessStat(start_ticks=None, zombie=False)})
    assert probe(HOLDER, hidden, embedded=True) is UNKNOWN


@pytest.mark.parametrize("embedded", [True, False])
def test_only_processes_that_can_be_judged_are_in_sight(embedded: bool) -> None:
    for place in (
        HERE,
        *(
            table.place
            for table in (OTHER_HOST, OTHER_BOOT, OTHER_BOOT_AND_NAMESPACE, OTHER_NAMESPACE)
        ),
    ):
        holder = Holder(**place._asdict(), pid=42, start_ticks=1000)
        prefix = visible_prefix(Table(), embedded=embedded)
        seen = holder.parts[: len(prefix)] == prefix
        judged = probe(holder, Table(), embedded=embedded) is not UNKNOWN
        assert seen or not judged
        assert embedded or seen == judged
    assert prefix != ()
