"""The registry of agents: each change is one transaction, and its journal entry commits with it.

Agents in the order of their names, a page at a time.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.domains.agents import cleanup as cleanup_
from holdfast.domains.agents import control, liveness, resolution
from holdfast.domains.agents.cleanup import Report
from holdfast.domains.agents.control import Target
from holdfast.domains.agents.liveness import Parts
from holdfast.domains.agents.ownership import Owning
from holdfast.domains.agents.ports import Outside
from holdfast.domains.agents.records import (
    AGENTS,
    Agent,
    Draft,
    Gateway,
    Identity,
    Runtime,
    Terminal,
    bare,
    canonical,
    check_backend,
    check_session,
    id_of,
    inner,
)
from holdfast.domains.agents.resolution import Resolution
from holdfast.kernel.clock import aware
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_GRACE_S, LIST_MAX
from holdfast.kernel.names import check_agent_name
from holdfast.kernel.settings import AgentSettings
from holdfast.kernel.store import Damage, Debris, ReadTx, Store
from holdfast.primitives.journal import Journal


def page(
    tx: ReadTx, *, after: tuple[str, str] | None, limit: int, damaged: Damage | None
) -> list[Agent]:
    """Up to `limit` agents behind a name and id, by name, then id."""
    if after is None:
        return [row.record for row in tx.find(AGENTS, "name", limit=limit, damaged=damaged)]
    place = (bare(after[0]), after[1])
    # Those of the same name come again, as a page can begin only with a name.
    again = tx.count(AGENTS, "name", place[:1])
    found = tx.find(AGENTS, "name", start=place[:1], limit=limit + again, damaged=damaged)
    return [row.record for row in found if (bare(row.record.agent_name), row.key) > place][:limit]


P = TypeVar("P", bound=Plain)

_NOT_IN_TMUX_NAMES = frozenset(".:")
"""They would address a window or a pane of another tmux session."""


class Agents:
    """Live agents on one store.

    Promised: of one id, one generation is published at a time; whoever lost it is told at its next
    refresh and changes nothing. What is resolved has a fresh lease. Not promised: that a fresh
    agent lives (see `liveness`), nor that it dies when it loses its record.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        outside: Outside,
        settings: AgentSettings | None = None,
        *,
        debris: Debris | None = None,
    ) -> None:
        self.settings = settings or AgentSettings()
        self.store = store
        self._journal = journal
        self._outside = outside
        self._debris = debris
        self._owning = Owning(store, journal, outside, self.settings)

    def publish(
        self,
        name: str,
        *,
        backend: str,
        tool: str,
        manifest_path: str,
        session_name: str | None = None,
        session_root: str | None = None,
        agent_def_dir: str | None = None,
        gateway: Gateway | None = None,
        holder: Holder | None = None,
        agent_id: str | None = None,
        generation_id: str | None = None,
        lease_s: float | None = None,
        lease_expires_at: datetime | None = None,
        take_over: bool = False,
    ) -> Agent:
        """Publish an agent and return its record, with the token of this generation.

        Without an `agent_id` it follows from the name; without a `generation_id` it is a new one.
        The generation that is published already is resumed, by the same tmux session, with a new
        token. `holder` is the agent's own process, never taken for granted to be the caller's.
        `take_over` is an operator's word that the present one is over.

        Raises Held when another generation has the id (or, where names are exclusive, the name),
        its lease is fresh and it is not proved to be gone; InvalidName and InvalidValue, naming the
        field, before anything is stored; InvalidValue for a lease that has ended already, and for
        an interactive agent without a tmux session.
        """
        check_session(backend, session_name)
        draft = _checked(
            Draft(
                agent_id=self._id(name, agent_id),
                agent_name=canonical(name, self.settings.prefix),
                generation_id=str(uuid.uuid4()) if generation_id is None else generation_id,
                identity=Identity(backend=check_backend(backend), tool=tool),
                runtime=_absolute(
                    Runtime(
                        manifest_path=manifest_path,
                        session_root=session_root,
                        agent_def_dir=agent_def_dir,
                    )
                ),
                terminal=None if session_name is None else Terminal(session_name=session_name),
                gateway=gateway,
                holder=holder,
            )
        )
        until = None if lease_expires_at is None else aware(lease_expires_at, "lease_expires_at")
        return self._owning.publish(draft, lease_s=lease_s, until=until, take_over=take_over)

    def refresh(
        self,
        agent_id: str,
        generation_id: str,
        *,
        token: int | None = None,
        lease_s: float | None = None,
    ) -> Agent:
        """Extend the lease of a generation from now, by what it was published with unless told, and
        return the record. A lease never ends earlier for it.

        Raises LeaseLost when another generation has taken over, or the record is gone: stand down.
        Raises Fenced when a `token` is shown and the same generation was resumed with another.
        """
        return self._owning.refresh(
            check_agent_name(agent_id, "agent id"), generation_id, token=token, lease_s=lease_s
        )

    def attach_gateway(self, agent_id: str, generation_id: str, gateway: Gateway | None) -> Agent:
        """Write down where the gateway of a generation listens, or that it has none any more.
        Raises as `refresh` does.
        """
        checked = None if gateway is None else _valid(gateway)
        return self._owning.attach(check_agent_name(agent_id, "agent id"), generation_id, checked)

    def remove(self, agent_id: str, generation_id: str, *, token: int | None = None) -> None:
        """Take a generation's own record out, in one step. Raises NotFound when there is none,
        LeaseLost when it is another generation's, and Fenced as `refresh` does.
        """
        self._owning.remove(check_agent_name(agent_id, "agent id"), generation_id, token=token)

    def get(self, agent_id: str) -> Agent:
        """The record of an id, fresh or not. Raises NotFound, and RecordInvalid for a damaged
        one.
        """
        row = self.store.get(AGENTS, check_agent_name(agent_id, "agent id"))
        if row is None:
            raise NotFound(
                f"there is no agent {agent_id}: `holdfast agents list` shows those there are",
                agent_id=agent_id,
            )
        return row.record

    def list_agents(
        self, *, fresh: bool = False, limit: int = LIST_MAX, damaged: Damage | None = None
    ) -> list[Agent]:
        """The records in the order of their names, then ids; with `fresh` only those. A damaged one
        raises, unless `damaged` is a list to tell of it in.
        """
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        rows = self.store.read(lambda tx: tx.find(AGENTS, "name", damaged=damaged), scope=[AGENTS])
        now = self.store.now()
        return [row.record for row in rows if not fresh or row.record.fresh(now)][:limit]

    def count(self) -> int:
        """How many records there are, fresh or not. Reads none of them."""
        return self.store.read(lambda tx: tx.count(AGENTS), scope=[AGENTS])

    def page(
        self,
        *,
        after: tuple[str, str] | None = None,
        limit: int = 100,
        damaged: Damage | None = None,
    ) -> list[Agent]:
        """Up to `limit` records in the order of `list_agents`, behind a name and id, whether or not
        they are still there.

        Reads no more than it must. For `damaged` see `list_agents`. Raises InvalidValue for a
        negative limit.
        """
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        return self.store.read(
            lambda tx: page(tx, after=after, limit=limit, damaged=damaged), scope=[AGENTS]
        )

    def in_tmux_session(self, name: str) -> list[Agent]:
        """The fresh records that say they run in a tmux session of that name, which nothing is
        trusted for. Passes over damaged ones.
        """
        rows = self.store.read(
            lambda tx: tx.find(AGENTS, "tmux_session", (name,), damaged=[]), scope=[AGENTS]
        )
        now = self.store.now()
        return [row.record for row in rows if row.record.fresh(now)]

    def resolve(self, name_or_id: str) -> Resolution:
        """The live record of a name or an id, or the reason why there is none. Raises InvalidName
        for what can be neither.
        """
        return resolution.resolve(self.store, name_or_id, self.settings.prefix)

    def resolve_live_agent_record(self, name_or_id: str) -> Agent | None:
        """The live record of a name or an id; None when it is missing, malformed, invalid, expired,
        published under another name or ambiguous. `resolve` says which.
        """
        return self.resolve(name_or_id).record

    def control_target(
        self,
        name_or_id: str,
        agent_def_dir: str | None = None,
        *,
        needs_agent_def_dir: bool = False,
    ) -> Target:
        """What may be controlled under a name or an id. Trusts nothing that the record points at,
        and never falls back.

        The process that the record names must live, and be in a pane of the tmux session, itself or
        by its parents. Asks tmux. A definition folder is needed when the record or the manifest
        names one, or `needs_agent_def_dir` says so; the one given here counts before the record's.
        Raises NotFound with the `reason`, or Ambiguous, when there is no live record; else one of
        the errors under Untrusted, each with a code of its own.
        """
        return control.control_target(
            self.store,
            self._outside,
            name_or_id,
            self.settings.prefix,
            agent_def_dir=agent_def_dir,
            needs_agent_def_dir=needs_agent_def_dir,
        )

    def liveness(self, agent: Agent) -> Parts:
        """What is known of its lease, process, tmux session and gateway, each by itself."""
        return liveness.look_at(
            agent, self._outside, embedded=self.store.embedded, now=self.store.now()
        )

    def cleanup(
        self, *, grace_s: float = AGENT_GRACE_S, dry_run: bool = False, tmux_check: bool = True
    ) -> Report:
        """Remove what is left behind: damaged records, those expired for longer than the grace,
        folders without a record, and, with `tmux_check`, those whose process is dead and whose tmux
        session is gone; and what `clear_after` does.

        Each is looked at again in the step that removes it, so that no live record is lost to a
        publisher that comes in between. One failure does not stop the rest. Raises InvalidValue for
        a negative grace.
        """
        gone = (
            (lambda agent: liveness.is_gone(agent, self._outside, embedded=self.store.embedded))
            if tmux_check
            else None
        )
        return cleanup_.clean(
            self.store,
            self._journal,
            self._debris,
            grace_s=grace_s,
            dry_run=dry_run,
            gone=gone,
            cleared=self.clear_after,
        )

    def clear_after(self, agent: Agent) -> None:
        """Remove the folder that was made for one that was killed and could not do so itself. One
        that lives, or may, needs it still, and one that a person named stays.
        """
        if (
            liveness.is_dead(agent, self._outside, embedded=self.store.embedded)
            and agent.runtime.session_root is not None
        ):
            self._outside.folders.remove(
                agent.runtime.session_root, agent.agent_id, agent.generation_id
            )

    def _id(self, name: str, agent_id: str | None) -> str:
        if agent_id is None:
            return id_of(canonical(name, self.settings.prefix))
        inner(agent_id, "agent id")
        return agent_id


def _absolute(runtime: Runtime) -> Runtime:
    for field, path in _paths(runtime):
        if isinstance(path, str) and path.strip() and not os.path.isabs(path):
            raise InvalidValue(
                f"{field} is {path[:80]!r}, which is not absolute: give the whole path", field=field
            )
    return runtime


def _paths(runtime: Runtime) -> Iterable[tuple[str, Any]]:
    return [(name, getattr(runtime, name)) for name in runtime.__struct_fields__]


def _checked(draft: Draft) -> Draft:
    if draft.gateway is not None and not os.path.isabs(str(draft.gateway.state_path)):
        raise InvalidValue(
            "gateway.state_path is not absolute: give the whole path", field="gateway.state_path"
        )
    for field, text in _texts(msgspec.to_builtins(_valid(draft))):
        if not text.isprintable():
            raise InvalidValue(
                f"{field} has control characters in it, or is no UTF-8: leave them out", field=field
            )
    if draft.terminal is not None and _NOT_IN_TMUX_NAMES & set(draft.terminal.session_name):
        raise InvalidValue(
            f"terminal.session_name {draft.terminal.session_name!r} cannot name a tmux session: "
            "tmux writes _ for . and :",
            field="terminal.session_name",
        )
    return draft


def _texts(parts: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in it, and the way to it."""
    for name, value in parts.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{path}{name}.")
        elif isinstance(value, str):
            yield f"{path}{name}", value


def _valid(value: P) -> P:
    """The value, if its fields are what they should be: nothing is checked when the program itself
    makes one.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        field = str(error).rpartition("$.")[2].rstrip("`")
        blank = any(
            path == field and not text.strip() for path, text in _texts(msgspec.to_builtins(value))
        )
        why = (
            "is blank: say what it is, or leave it out"
            if blank
            else f"cannot be published: {error}"
        )
        raise InvalidValue(f"{field} {why}", field=field) from None
