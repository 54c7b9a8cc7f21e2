"""Random sequences of everything that can happen to agents, each answer compared with a plain dict.

One program plays all publishers, on a clock that moves only when told, with processes and tmux
sessions that live and die when told. The oracle keeps what is published in a dict and knows by
itself who lives. Compared after every step: what each name and id resolves to and why not, what is
stored, and what the journal tells.
"""

import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from holdfast.domains.agents import Agents, Reason
from holdfast.domains.agents.records import AGENTS, id_of
from holdfast.kernel.errors import Fenced, Held, HoldfastError, LeaseLost, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.settings import AgentSettings, JournalSettings
from holdfast.kernel.store import BEGINNING, Store
from holdfast.primitives.journal import Journal
from holdfast.testing.clock import ManualClock
from tests.model.search import search
from tests.stores.harnesses import IN_MEMORY, MemoryHarness, SqliteHarness
from tests.unit.agent_world import AgentFolders, World

pytestmark = pytest.mark.prove

GRACE_S = 300.0
NAMES = ["a", "b"]
DERIVED = {name: id_of(f"HOLDFAST-{name}") for name in NAMES}
IDS = [*DERIVED.values(), "x"]
SESSIONS = ["s", "t", None]
LEASES_S = [10.0, 1000.0]


class Published(NamedTuple):
    """What the oracle knows of one record."""

    name: str
    generation_id: str
    session: str | None
    holder: Holder | None
    ends_at: datetime
    token: int


Harness = Callable[[], tuple[Store, ManualClock]]

# Mostly the same name, the latest generation, a process of its own: what is rare to meet by chance
# is what is to be tried.
names = st.sampled_from(["a", "a", "a", "b"])
ids = st.sampled_from(IDS)
which = st.integers(0, 3)
back = st.sampled_from([0, 0, 0, 0, 1, 2])


class AgentsMachine(RuleBasedStateMachine):
    """Each rule does one thing to the registry and to the oracle."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        store, clock = harness()
        self.world = World(store, clock, Path("/"), lambda *_: None)
        self.world.journal = Journal(
            self.world.store, actor="model", keep=JournalSettings(keep_s=1e9)
        )
        self.pids = count(100)
        self.generations = count(1)
        self.processes = [self.world.process(next(self.pids)) for _ in range(3)]
        self.world.tmux.sessions = {"s", "t"}
        self.dead: set[Holder] = set()
        self.known: dict[str, list[str]] = {agent_id: ["g-0"] for agent_id in IDS}
        self.published: dict[str, Published] = {}
        self.expected: list[tuple[str, str]] = []
        self.cursor = BEGINNING

    @initialize(exclusive=st.booleans())
    def begin(self, exclusive: bool) -> None:
        note(
            f"a store of kind {self.world.store.kind}, names "
            f"{'exclusive' if exclusive else 'shared'}"
        )
        self.exclusive = exclusive
        self.agents: Agents = self.world.registry(
            AgentSettings(names="exclusive" if exclusive else "shared")
        )

    # --- the oracle ---

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def fresh(self, one: Published) -> bool:
        return self.now <= one.ends_at

    def gone(self, one: Published) -> bool:
        sessions = self.world.tmux.sessions or set()
        return one.holder in self.dead and (one.session is None or one.session not in sessions)

    def in_the_way(self, agent_id: str, name: str, generation_id: str) -> list[str]:
        """The ids of those that a publish must deal with, in order."""
        found = []
        if agent_id in self.published and self.published[agent_id].generation_id != generation_id:
            found.append(agent_id)
        if self.exclusive:
            others = sorted(self.published)
            found += [
                o
                for o in others
                if o != agent_id
                and self.published[o].name == name
                and self.fresh(self.published[o])
            ]
        return found

    def attempt(self, kind: type[HoldfastError] | None, call: Callable[[], Any]) -> Any:
        """Do it, and see that it ends as the oracle says."""
        if kind is None:
            return call()
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        return None

    # --- what can happen ---

    @rule(
        name=names,
        agent_id=st.none() | ids,
        old=st.booleans(),
        session=st.sampled_from(SESSIONS),
        process=st.sampled_from([0, 1, 2, 0, 1, 2, None]),
        lease_s=st.sampled_from(LEASES_S),
        take_over=st.integers(0, 4).map(lambda n: n == 0),
    )
    def publish(
        self,
        name: str,
        agent_id: str | None,
        old: bool,
        session: str | None,
        process: int | None,
        lease_s: float,
        take_over: bool,
    ) -> None:
        key = agent_id or DERIVED[name]
        generation_id = self.known[key][-1] if old else f"g-{next(self.generations)}"
        holder = None if process is None else self.processes[process % len(self.processes)]
        outcome, replaced = self.judge(key, name, generation_id, session, take_over=take_over)
        agent = self.attempt(
            outcome,
            lambda: self.world.publish(
                name,
                agents=self.agents,
                agent_id=agent_id,
                generation_id=generation_id,
                session_name=session,
                holder=holder,
                lease_s=lease_s,
                take_over=take_over,
            ),
        )
        if agent is not None:
            for other in replaced:
                self.expected.append(("agent.taken_over", other))
                del self.published[other]
            self.expected.append(("agent.published", key))
            before = max((one.token for one in self.published.values()), default=0)
            assert agent.token > before
            self.known[key].append(generation_id)
            ends_at = self.now + timedelta(seconds=lease_s)
            self.published[key] = Published(
                name, generation_id, session, holder, ends_at, agent.token
            )
        self.agree()

    def judge(
        self, key: str, name: str, generation_id: str, session: str | None, *, take_over: bool
    ) -> tuple[type[HoldfastError] | None, list[str]]:
        present = self.published.get(key)
        if (
            present
            and present.generation_id == generation_id
            and present.session != session
            and self.fresh(present)
        ):
            return Held, []
        others = self.in_the_way(key, name, generation_id)
        blocked = [
            o for o in others if self.fresh(self.published[o]) and not self.gone(self.published[o])
        ]
        return (Held if blocked and not take_over else None), others

    @rule(
        agent_id=ids,
        at=back,
        lease_s=st.sampled_from(LEASES_S),
        token=st.sampled_from(["none", "right", "right", "wrong"]),
    )
    def refresh(self, agent_id: str, at: int, lease_s: float, token: str) -> None:
        generation_id, shown = self.claim(agent_id, at, token)
        one = self.published.get(agent_id)
        outcome = self.ownership(agent_id, generation_id, shown)
        if outcome is None and one and self.exclusive and not self.fresh(one):
            rivals = [
                o
                for key, o in self.published.items()
                if key != agent_id and o.name == one.name and self.fresh(o)
            ]
            outcome = LeaseLost if rivals else None
        self.attempt(
            outcome,
            lambda: self.agents.refresh(agent_id, generation_id, token=shown, lease_s=lease_s),
        )
        if outcome is None and one:
            self.expected.append(("agent.refreshed", agent_id))
            self.published[agent_id] = one._replace(
                ends_at=max(one.ends_at, self.now + timedelta(seconds=lease_s))
            )
        self.agree()

    @rule(agent_id=ids, at=back, token=st.sampled_from(["none", "right", "right", "wrong"]))
    def remove(self, agent_id: str, at: int, token: str) -> None:
        generation_id, shown = self.claim(agent_id, at, token)
        outcome = (
            self.ownership(agent_id, generation_id, shown)
            if agent_id in self.published
            else NotFound
        )
        self.attempt(outcome, lambda: self.agents.remove(agent_id, generation_id, token=shown))
        if outcome is None:
            self.expected.append(("agent.removed", agent_id))
            del self.published[agent_id]
        self.agree()

    def claim(self, agent_id: str, at: int, token: str) -> tuple[str, int | None]:
        known = self.known[agent_id]
        present = self.published.get(agent_id)
        right = present.token if present else 7
        return known[max(len(known) - 1 - at, 0)], {
            "none": None,
            "right": right,
            "wrong": right - 1,
        }[token]

    def ownership(
        self, agent_id: str, generation_id: str, token: int | None
    ) -> type[HoldfastError] | None:
        one = self.published.get(agent_id)
        if one is None or one.generation_id != generation_id:
            return LeaseLost
        return Fenced if token not in (None, one.token) else None

    @rule(
        seconds=st.sampled_from([1.0, 9.999_999, 10.0, 10.000_001, GRACE_S, 1000.0, 1000.1, -20.0])
    )
    def time_passes(self, seconds: float) -> None:
        # A clock that steps back makes an expired one fresh again beside its successor, of which
        # nobody is to blame.
        self.world.clock.advance(abs(seconds) if self.exclusive else seconds)
        self.agree()

    @rule(name=names, session=st.sampled_from(SESSIONS))
    def lapse(self, name: str, session: str | None) -> None:
        """One lets its lease run out, another id comes under its name, and the first wants to go
        on.
        """
        self.time_passes(1000.1)
        self.publish(
            name, "x", old=False, session=session, process=None, lease_s=1000.0, take_over=False
        )
        self.refresh(DERIVED[name], 0, 10.0, "none")

    @rule(at=which)
    def die(self, at: int) -> None:
        """A process dies, and another begins."""
        slot = at % len(self.processes)
        self.world.machine.end(self.processes[slot].pid)
        self.dead.add(self.processes[slot])
        self.processes[slot] = self.world.process(next(self.pids))

    @rule(session=st.sampled_from(["s", "t"]), lives=st.booleans())
    def tmux(self, session: str, lives: bool) -> None:
        sessions = self.world.tmux.sessions or set()
        self.world.tmux.sessions = sessions | {session} if lives else sessions - {session}

    @rule(dry_run=st.booleans(), tmux_check=st.booleans())
    def cleanup(self, dry_run: bool, tmux_check: bool) -> None:
        expected = {}
        for key, one in self.published.items():
            if self.fresh(one):
                expected[key] = "gone" if tmux_check and self.gone(one) else "fresh"
            else:
                expected[key] = (
                    "expired" if one.ends_at + timedelta(seconds=GRACE_S) < self.now else "in_grace"
                )
        report = self.agents.cleanup(grace_s=GRACE_S, dry_run=dry_run, tmux_check=tmux_check)
        planned = {key for key, why in expected.items() if why in ("gone", "expired")}
        assert {
            item.agent_id: item.why.value for item in (*report.planned, *report.preserved)
        } == expected
        assert {item.agent_id for item in report.planned} == planned
        assert {item.agent_id for item in report.removed} == (set() if dry_run else planned)
        assert report.failed == ()
        for key in [] if dry_run else sorted(planned):
            self.expected.append(("agent.cleaned", key))
            del self.published[key]
        self.agree()

    # --- what must agree ---

    def agree(self) -> None:
        rows = {
            row.key: row.record
            for row in self.world.store.read(lambda tx: tx.range(AGENTS), scope=[AGENTS])
        }
        seen = {
            key: Published(
                one.agent_name.removeprefix("HOLDFAST-"),
                one.generation_id,
                one.session_name,
                one.holder,
                one.lease_expires_at,
                one.token,
            )
            for key, one in rows.items()
        }
        assert seen == self.published
        for asked in (*NAMES, *IDS):
            self.same_answer(asked)
        if self.exclusive:
            live = [one.name for one in self.published.values() if self.fresh(one)]
            assert len(live) == len(set(live)), "two live agents of one name"
        batch = self.world.store.journal(self.cursor)
        self.cursor = batch.cursor
        assert [(entry.kind, entry.subject) for entry in batch.entries] == self.expected
        self.expected = []

    def same_answer(self, asked: str) -> None:
        found = self.agents.resolve(asked)
        assert self.agents.resolve_live_agent_record(asked) == found.record
        by_id = self.published.get(asked)
        if by_id is not None and self.fresh(by_id):
            assert found.record is not None and found.record.agent_id == asked
            return
        named = {key: one for key, one in self.published.items() if one.name == asked}
        live = sorted(key for key, one in named.items() if self.fresh(one))
        if len(live) == 1:
            assert found.record is not None and found.record.agent_id == live[0]
            return
        assert found.record is None
        assert found.reason is self.reason(asked, live, by_id, named)
        if live:
            assert sorted(found.agent_ids) == live

    def reason(
        self, asked: str, live: list[str], by_id: Published | None, named: dict[str, Published]
    ) -> Reason:
        if live:
            return Reason.AMBIGUOUS
        if by_id is not None or named:
            return Reason.EXPIRED
        derived = self.published.get(DERIVED.get(asked, ""))
        if derived is not None:
            return Reason.OTHER_NAME if self.fresh(derived) else Reason.EXPIRED
        return Reason.MISSING

    def teardown(self) -> None:
        self.world.close()


def agree(harness: Harness, *, examples: int, steps: int) -> None:
    search(lambda: AgentsMachine(harness), examples=examples, steps=steps)


def test_agents_in_memory_agree_with_a_plain_dict() -> None:
    def harness() -> tuple[Store, ManualClock]:
        made = MemoryHarness()
        return made.open(), made.clock

    agree(harness, examples=120, steps=40)


def test_agents_in_sqlite_agree_with_a_plain_dict() -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)

        def harness() -> tuple[Store, ManualClock]:
            place = Path(folder) / str(next(numbers))
            place.mkdir()
            made = SqliteHarness(place)
            return made.open(), made.clock

        agree(harness, examples=25, steps=30)


def test_agents_in_files_agree_with_a_plain_dict() -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        numbers = count(1)

        def harness() -> tuple[Store, ManualClock]:
            made = AgentFolders(Path(folder) / str(next(numbers)))
            return made.open(), made.clock

        agree(harness, examples=20, steps=25)


def test_agents_in_postgresql_agree_with_a_plain_dict(postgres_url: str) -> None:
    from tests.stores.harnesses_postgres import PostgresHarness

    numbers = count(1)

    def harness() -> tuple[Store, ManualClock]:
        made = PostgresHarness(postgres_url)
        return made.open(namespace=f"w{next(numbers)}"), made.clock

    agree(harness, examples=15, steps=25)
