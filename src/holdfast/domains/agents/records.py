"""An agent's name, id, backend and record.

Version 2 of the record has the fields of the registry that Holdfast replaces, so that a folder of
that registry is read as it is. Holdfast adds `holder`, `token` and `lease_s`, and leaves out
`terminal` for an agent that runs without tmux. In a file, a record may also have version 3 of that
registry (`houmao_record.py`): it is one with a `lifecycle`.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.domains.agents import houmao_record
from holdfast.domains.agents.houmao_record import HoumaoLifecycle
from holdfast.kernel.agent_adapter import PathText, Text
from holdfast.kernel.clock import render
from holdfast.kernel.codec import Instant, Plain, Record, check_instants, to_plain
from holdfast.kernel.errors import Corrupt, InvalidName, InvalidValue, SchemaTooNew
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, FilePerRecord, Wire
from holdfast.kernel.lease import Lease
from holdfast.kernel.names import check_agent_name
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx

VERSION = 2
PREFIXES = ("HOLDFAST-", "HOUMAO-")
"""A name may be typed with any of these, or with none."""
_RESERVED = "houmao[^0-9a-z]"
"""The beginning of a name that nobody may choose where names have no prefix: Houmao gives such
names itself.
"""


def bare(name: str) -> str:
    """The name without a known prefix."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def inner(name: str, what: str = "agent name") -> str:
    """The checked name without its prefix. `gpu` and `HOLDFAST-gpu` are one name.

    Raises InvalidName for a name that no agent can have: among them a prefix alone and a prefix
    behind a prefix.
    """
    found = bare(check_agent_name(name, what))
    if f"{found}-".startswith(PREFIXES) or not found:
        raise InvalidName(
            f"{name!r} is reserved: write a name behind the prefix, as in {PREFIXES[0]}gpu",
            what=what,
        )
    return found


def canonical(name: str, prefix: str) -> str:
    """The name with the configured prefix, under which an agent is published. Without a prefix,
    `HOUMAO-gpu` and `gpu` may be two agents, so that the first cannot be chosen.

    Raises InvalidName for that, and as `inner` does.
    """
    if not prefix and re.match(_RESERVED, name, re.IGNORECASE):
        raise InvalidName(
            f"{name!r} is reserved: names have no prefix here (agents.prefix), so write "
            f"{name[len('HOUMAO-') :] or 'gpu'}",
            what="agent name",
        )
    return check_agent_name(prefix + inner(name))


def id_of(canonical_name: str) -> str:
    """The id of an agent without an explicit one: two publishers of one name get the same id."""
    from hashlib import md5

    return md5(canonical_name.encode(), usedforsecurity=False).hexdigest()


AgentKey = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")]


class Identity(Plain, frozen=True, kw_only=True):
    """The backend that the agent runs on, and the tool that it is."""

    backend: Text
    tool: Text


class Runtime(Plain, frozen=True, kw_only=True):
    """The agent's files. Holdfast publishes absolute paths only; paths that another program
    published are checked when they are used.
    """

    manifest_path: PathText
    session_root: PathText | None = None
    agent_def_dir: PathText | None = None


class Terminal(Plain, frozen=True, kw_only=True):
    """The tmux session that the agent runs in."""

    kind: Literal["tmux"] = "tmux"
    session_name: Text


class GatewayAddress(Plain, frozen=True, kw_only=True):
    """The address of the agent's gateway."""

    host: Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    state_path: PathText
    protocol_version: Text


class Agent(Record, frozen=True, kw_only=True):
    """The record of one agent. `token` is the revision of its last publish; it is 0 in a record of
    another program.

    `mailbox` belongs to the other registry and is kept unchanged. `holder` is the agent's own
    process, if its publisher named one. `lease_s` is the length of the published lease; a gateway
    that renews the lease keeps to it. A record of version 3 has a `lifecycle`.
    """

    schema_version: int = VERSION
    agent_id: AgentKey
    agent_name: AgentKey
    generation_id: Text
    published_at: Instant
    lease_expires_at: Instant
    identity: Identity
    runtime: Runtime
    terminal: Terminal | None = None
    gateway: GatewayAddress | None = None
    mailbox: dict[str, Any] | None = None
    holder: Holder | None = None
    token: int = 0
    lease_s: float | None = None
    lifecycle: HoumaoLifecycle | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_instants(self)
        if self.lease_expires_at <= self.published_at:
            raise InvalidValue(
                f"lease_expires_at {render(self.lease_expires_at)} is not later than published_at "
                f"{render(self.published_at)}: give a lease that ends after it begins",
                field="lease_expires_at",
            )

    def fresh(self, now: datetime) -> bool:
        """True up to and including the instant its lease expires; False once it has stopped."""
        return self.lease_expires_at >= now and self.lifecycle_state in ("active", "relaunching")

    @property
    def lifecycle_state(self) -> houmao_record.State:
        """The state in a record of version 3; any other record is that of an active agent."""
        return "active" if self.lifecycle is UNSET else self.lifecycle.state

    @property
    def session_name(self) -> str | None:
        """The name of its tmux session, if it has one."""
        return None if self.terminal is None else self.terminal.session_name


def run_by_gateway(agent: Agent) -> bool:
    """Does its gateway start it, and end it?"""
    return agent.holder is None and agent.identity.backend in RUN_BY_GATEWAY


def lease_of(agent: Agent) -> Lease:
    return Lease(granted_at=agent.published_at, expires_at=agent.lease_expires_at)


def to_file(agent: Agent) -> Document:
    """The document of a record in a file. Empty fields are left out, as other programs that read
    the folder do not know all of them.
    """
    if agent.lifecycle is not UNSET:
        return houmao_record.of_current(to_plain(agent), agent.lifecycle)
    return {
        name: value
        for name, value in to_plain(agent).items()
        if value is not None and (name != "token" or value)
    }


def from_file(key: str, document: Document) -> Agent:
    """The record in a file's document. Raises ValueError for an invalid document and for the
    record of another agent, and SchemaTooNew.
    """
    version, newest = document.get("schema_version"), houmao_record.VERSION
    if isinstance(version, int) and version > newest:
        raise SchemaTooNew(
            f"agents/{key} has schema version {version} and this program knows {VERSION} and "
            f"{newest}: use a newer holdfast",
            space="agents",
            key=key,
            version=version,
        )
    if version == newest and not isinstance(version, bool):
        return _own_record(key, msgspec.convert(houmao_record.to_current(document), Agent))
    if version != VERSION:
        raise ValueError(
            f"its schema_version is {version!r}, and this program reads {VERSION} and {newest}"
        )
    gateway = document.get("gateway")
    if isinstance(gateway, dict) and all(value is None for value in gateway.values()):
        # The other registry writes an agent without a gateway like this.
        document = {**document, "gateway": None}
    if "lifecycle" in document:
        raise ValueError(f"a record of version {VERSION} has no lifecycle")
    return _own_record(key, msgspec.convert(document, Agent))


def _own_record(key: str, agent: Agent) -> Agent:
    if agent.agent_id != key:
        raise ValueError(f"agent_id is {agent.agent_id}, which is not that of its folder")
    return agent


class _Aside(Plain, frozen=True, kw_only=True):
    """What a file of version 3 has no place for, of that generation."""

    generation_id: Text
    holder: Holder | None = None
    token: int = 0
    lease_s: float | None = None
    gateway: GatewayAddress | None = None


def _aside(agent: Agent) -> Document | None:
    if agent.lifecycle is UNSET:
        return None
    gateway = agent.gateway
    named = gateway is None or houmao_record.has_place_for(gateway.host)
    kept = _Aside(
        generation_id=agent.generation_id,
        holder=agent.holder,
        token=agent.token,
        lease_s=agent.lease_s,
        gateway=None if named else gateway,
    )
    document: Document = to_plain(kept)
    return document


def _rejoin(agent: Agent, document: Document) -> Agent:
    aside = msgspec.convert(document, _Aside)
    if agent.lifecycle is UNSET or aside.generation_id != agent.generation_id:
        # Another program has published another agent since.
        return agent
    return replace(
        agent,
        holder=aside.holder,
        token=aside.token,
        lease_s=aside.lease_s,
        gateway=agent.gateway or aside.gateway,
    )


def _refuse_version_1(_: Document) -> Document:
    raise ValueError("version 1 had no agent_id, and none is made up here")


AGENTS = Space(
    "agents",
    Agent,
    schema_version=VERSION,
    upgrades={1: _refuse_version_1},
    indexes={
        "name": lambda agent: (bare(agent.agent_name),),
        "tmux_session": lambda agent: (agent.session_name,) if agent.session_name else None,
    },
    layout=FilePerRecord(
        "agents", "live_agents/{key}/record.json", Wire(to_file, from_file, _aside, _rejoin)
    ),
)


def stored_agent(tx: ReadTx, agent_id: str) -> Agent | Corrupt | None:
    """The record of an id, or what is wrong with it."""
    try:
        row = tx.get(AGENTS, agent_id)
    except Corrupt as damage:
        return damage
    return None if row is None else row.record


TMUX_BACKED: Mapping[str, bool] = {
    "local_interactive": True,
    "claude_headless": True,
    "codex_headless": True,
    "gemini_headless": True,
    "kimi_headless": True,
    "codex_app_server": False,
    "cao_rest": False,
    "houmao_server_rest": False,
    "command": False,
    "acp": False,
}
"""The known backends, and whether each runs in tmux. Any other `TOOL_headless` runs in tmux too.
`command` is a program in the foreground; `acp` and `codex_app_server` run below their gateway.
"""

RUN_BY_GATEWAY = ("acp", "codex_app_server")
"""The backends whose agents run below their gateway: no record names a process of theirs."""

HEADLESS = r"[a-z0-9]+_headless\Z"


def tmux_backed(backend: str) -> bool:
    """Does the backend run in tmux? False for an unknown one: nothing is controlled on a guess."""
    if backend in TMUX_BACKED:
        return TMUX_BACKED[backend]
    return re.match(HEADLESS, backend) is not None
