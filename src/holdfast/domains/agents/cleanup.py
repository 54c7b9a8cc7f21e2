"""What dead agents left, and what of it may be removed.

`verdict` decides and does no I/O. Records are found through the store. A store that keeps records
as files can also have folders without a record, which the kernel's port `Debris` shows.
"""

import enum
from collections.abc import Callable, Container
from datetime import datetime

from holdfast.domains.agents.ownership import incarnation_of, topic_of
from holdfast.domains.agents.records import AGENTS, Agent, stored_agent
from holdfast.domains.agents.runs import AgentRuns
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Corrupt, HoldfastError, InvalidValue, SchemaTooNew
from holdfast.kernel.limits import RETENTION_JUMP_IGNORED_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Debris, Leftover, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock

IsGone = Callable[[Agent], bool]


class Condition(enum.StrEnum):
    """The condition of what was found: why it is removed or preserved."""

    DAMAGED = "damaged"
    EXPIRED = "expired"
    GONE = "gone"
    NO_RECORD = "no_record"
    FRESH = "fresh"
    IN_GRACE = "in_grace"
    TOO_NEW = "too_new"
    STOPPED = "stopped"
    LINK = "link"
    OLD_RUN = "old_run"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


REMOVED_FOR = {
    Condition.DAMAGED,
    Condition.EXPIRED,
    Condition.GONE,
    Condition.NO_RECORD,
    Condition.LINK,
    Condition.OLD_RUN,
}
"""The conditions in which something is removed; in every other one it stays."""


class CleanupItem(Plain, frozen=True, kw_only=True):
    """One record or folder that the cleanup looked at."""

    agent_id: str
    why: Condition
    detail: str = ""


class CleanupReport(Plain, frozen=True, kw_only=True):
    """What a cleanup planned (also in a dry run), removed, preserved and failed to remove."""

    dry_run: bool
    planned: tuple[CleanupItem, ...]
    removed: tuple[CleanupItem, ...]
    preserved: tuple[CleanupItem, ...]
    failed: tuple[CleanupItem, ...]


def verdict(
    found: Agent | Corrupt | Leftover, now: datetime, grace_s: float, is_gone: IsGone | None
) -> Condition:
    """The condition of one thing that was found. Does no I/O."""
    if isinstance(found, SchemaTooNew):
        return Condition.TOO_NEW
    if isinstance(found, Corrupt):
        return Condition.DAMAGED
    if isinstance(found, Leftover):
        # A publisher may be between making the folder and writing the record into it.
        in_grace = found.kind == "no_record" and found.age_s < grace_s
        return Condition.IN_GRACE if in_grace else Condition(found.kind)
    if found.fresh(now):
        return Condition.GONE if is_gone is not None and is_gone(found) else Condition.FRESH
    if found.lifecycle_state in ("stopped", "retired"):
        # Its own system starts it again from this record, however old it is.
        return Condition.STOPPED
    return (
        Condition.EXPIRED
        if (now - found.lease_expires_at).total_seconds() > grace_s
        else Condition.IN_GRACE
    )


class CleanupRun:
    """One cleanup of a store. Raises InvalidValue for an impossible grace. See `Agents.cleanup`."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        debris: Debris | None,
        runs: AgentRuns | None = None,
        *,
        grace_s: float,
        is_gone: IsGone | None,
    ) -> None:
        # TOML and the command line can say nan and inf.
        if not 0 <= grace_s < float("inf"):
            raise InvalidValue(
                f"a grace of {grace_s} s is not possible: give 0 or more seconds", field="grace_s"
            )
        self._store = store
        self._journal = journal
        self._debris = debris
        self._runs = runs
        self._grace_s = grace_s
        self._is_gone = is_gone

    def run(self, *, dry_run: bool, after_removal: Callable[[Agent], None]) -> CleanupReport:
        """Look at everything and, unless it is a dry run, remove what may go."""
        steady_clock(self._store).compare()
        found = self._find()
        planned = [item for item in found if item.why in REMOVED_FOR]
        preserved = [item for item in found if item.why not in REMOVED_FOR]
        removed: list[CleanupItem] = []
        failed: list[CleanupItem] = []
        for item in [] if dry_run else planned:
            try:
                if self._remove(item, after_removal):
                    removed.append(item)
                else:
                    preserved.append(
                        CleanupItem(
                            agent_id=item.agent_id,
                            why=Condition.CHANGED,
                            detail="it changed meanwhile",
                        )
                    )
            except HoldfastError as error:
                failed.append(
                    CleanupItem(agent_id=item.agent_id, why=item.why, detail=error.message)
                )
        return CleanupReport(
            dry_run=dry_run,
            planned=tuple(planned),
            removed=tuple(removed),
            preserved=tuple(preserved),
            failed=tuple(failed),
        )

    def _find(self) -> list[CleanupItem]:
        def look(tx: ReadTx) -> tuple[list[Agent], Damage, datetime]:
            damaged: Damage = []
            found = [row.record for row in tx.range(AGENTS, damaged=damaged)]
            return found, damaged, self._believed(tx.now)

        agents, damaged, now = self._store.read(look, scope=[AGENTS])
        items = [
            self._item(agent.agent_id, agent, now, self._is_gone, agent.agent_name)
            for agent in agents
        ]
        leftovers = [] if self._debris is None else self._debris.leftovers(AGENTS)
        others = [self._item(one.key, one, now, None) for one in leftovers]
        # A link or a closed folder is listed once, not as a damaged record too.
        listed = {
            item.agent_id for item in others if item.why in (Condition.LINK, Condition.UNREADABLE)
        }
        for damage in damaged:
            item = self._item(str(damage.fields.get("key", "")), damage, now, None, damage.message)
            if item.why is not Condition.DAMAGED or item.agent_id not in listed:
                items.append(item)
        known = {agent.agent_id for agent in agents}
        return items + others + self._old_runs(known, now)

    def _old_runs(self, known: Container[str], now: datetime) -> list[CleanupItem]:
        """The runs that are too old to be kept, of agents that are not published any more."""
        found = [] if self._runs is None else self._runs.listed()
        return [
            CleanupItem(
                agent_id=run.agent.agent_id, why=Condition.OLD_RUN, detail=run.agent.agent_name
            )
            for run in found
            if run.agent.agent_id not in known and run.outdated(now)
        ]

    def _item(
        self,
        agent_id: str,
        found: Agent | Corrupt | Leftover,
        now: datetime,
        is_gone: IsGone | None,
        detail: str = "",
    ) -> CleanupItem:
        why = verdict(found, now, self._grace_s, is_gone)
        return CleanupItem(agent_id=agent_id, why=why, detail=detail)

    def _believed(self, now: datetime) -> datetime:
        # A clock that jumped ahead would make every lease look expired, and live records would go.
        return steady_clock(self._store).without_jump(now, after_s=RETENTION_JUMP_IGNORED_S)

    def _remove(self, item: CleanupItem, after_removal: Callable[[Agent], None]) -> bool:
        """Remove one thing if it is still as it was found."""
        if item.why in (Condition.NO_RECORD, Condition.LINK):
            return self._debris is not None and self._debris.remove_leftover(
                AGENTS, item.agent_id, older_than_s=self._grace_s
            )
        if item.why is Condition.OLD_RUN and self._runs is not None:
            run = self._runs.read(item.agent_id)
            outdated = run is not None and run.outdated(self._believed(self._store.now()))
            if outdated:
                self._runs.remove(item.agent_id)
            return outdated
        # A dead process stays dead, so it is probed outside of the transaction. Inside, the verdict
        # counts only for the same incarnation.
        seen = self._store.read(lambda tx: stored_agent(tx, item.agent_id), scope=[AGENTS])
        gone = (
            incarnation_of(seen)
            if isinstance(seen, Agent) and self._is_gone is not None and self._is_gone(seen)
            else None
        )

        def body(tx: Tx) -> Agent | Corrupt | None:
            found = stored_agent(tx, item.agent_id)
            if found is None:
                return None
            now = self._believed(tx.now)
            why = verdict(found, now, self._grace_s, lambda agent: incarnation_of(agent) == gone)
            if why not in REMOVED_FOR:
                return None
            tx.delete(AGENTS, item.agent_id)
            name = {"agent_name": found.agent_name} if isinstance(found, Agent) else {}
            data = {**name, "why": item.why.value}
            self._journal.append(tx, kind="agent.cleaned", subject=item.agent_id, data=data)
            tx.notify(topic_of(item.agent_id))
            return found

        removed = self._store.transact(body, scope=[rows(AGENTS)])
        if isinstance(removed, Agent):
            after_removal(removed)
        return removed is not None
