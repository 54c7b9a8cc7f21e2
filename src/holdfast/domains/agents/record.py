"""An agent's record: which generation is alive under an id, until when, and where its manifest is.

Version 2 is that of the registry in the source's system, field by field, so that a folder of it is read as it is. Holdfast
adds `holder`, `token` and `lease_s`, and leaves out `terminal` for what runs without tmux.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from holdfast.domains.agents.names import bare
from holdfast.kernel.clock import render
from holdfast.kernel.codec import Instant, Plain, Record, to_plain
from holdfast.kernel.errors import InvalidValue, SchemaTooNew
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, FilePerRecord, Wire
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import LABEL_CHARS_MAX, PATH_CHARS_MAX
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import Space

VERSION = 2

# As little as keeps blank ones out: it is run for every text of every record that is read. What may be published is checked
# by its publisher.
_NOT_BLANK = r"\S"

Text = Annotated[str, msgspec.Meta(pattern=_NOT_BLANK, max_length=LABEL_CHARS_MAX)]
PathText = Annotated[str, msgspec.Meta(pattern=_NOT_BLANK, max_length=PATH_CHARS_MAX)]
AgentKey = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")]


class Identity(Plain, frozen=True, kw_only=True):
    """What the agent is: what it runs on, and the tool that it is."""

    backend: Text
    tool: Text


class Runtime(Plain, frozen=True, kw_only=True):
    """Where its files are. Paths are absolute in what Holdfast publishes; elsewhere that is checked when they are used."""

    manifest_path: PathText
    session_root: PathText | None = None
    agent_def_dir: PathText | None = None


class Terminal(Plain, frozen=True, kw_only=True):
    """The tmux session that it runs in."""

    kind: Literal["tmux"] = "tmux"
    session_name: Text


class Gateway(Plain, frozen=True, kw_only=True):
    """The gateway beside it."""

    host: Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    state_path: PathText
    protocol_version: Text


class Draft(Plain, frozen=True, kw_only=True):
    """An agent as its publisher describes it; time and token are the store's."""

    agent_id: AgentKey
    agent_name: AgentKey
    generation_id: Text
    identity: Identity
    runtime: Runtime
    terminal: Terminal | None = None
    gateway: Gateway | None = None
    holder: Holder | None = None


class Agent(Record, frozen=True, kw_only=True):
    """One live agent. `token` is the revision of the publish that made it this generation's, 0 for another program's record.

    `mailbox` is the source system's own and is kept as it came. `holder` is the agent's own process, where its publisher
    named one. `lease_s` is the length of the lease it was published with, which whoever renews it for its publisher keeps to.
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
    gateway: Gateway | None = None
    mailbox: dict[str, Any] | None = None
    holder: Holder | None = None
    token: int = 0
    lease_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lease_expires_at <= self.published_at:
            raise InvalidValue(
                f"lease_expires_at {render(self.lease_expires_at)} is not later than published_at "
                f"{render(self.published_at)}: give a lease that ends after it begins",
                field="lease_expires_at",
            )

    def fresh(self, now: datetime) -> bool:
        """True up to and including the instant its lease expires."""
        return self.lease_expires_at >= now

    @property
    def session_name(self) -> str | None:
        """The name of its tmux session, if it has one."""
        return None if self.terminal is None else self.terminal.session_name


def lease_of(agent: Agent) -> Lease:
    """An agent's lease, as the rules of leases see it."""
    return Lease(granted_at=agent.published_at, expires_at=agent.lease_expires_at)


def _by_name(agent: Agent) -> Parts:
    return (bare(agent.agent_name),)


def _by_tmux_session(agent: Agent) -> Parts | None:
    return None if agent.terminal is None else (agent.terminal.session_name,)


def _refuse(_: Document) -> Document:
    raise ValueError("version 1 had no agent_id, and none is made up here")


def to_file(agent: Agent) -> Document:
    """The document of a record in a file: what is not there is left out, as the source's system does not know all of it."""
    return {name: value for name, value in to_plain(agent).items() if value is not None and (name != "token" or value)}


def from_file(key: str, document: Document) -> Agent:
    """The record of a document in a file. Raises ValueError for what is none, or that of another agent, and SchemaTooNew."""
    version = document.get("schema_version")
    if isinstance(version, int) and version > VERSION:
        raise SchemaTooNew(
            f"agents/{key} has schema version {version} and this program knows up to {VERSION}: use a newer holdfast",
            space="agents",
            key=key,
            version=version,
        )
    if version != VERSION:
        raise ValueError(f"its schema_version is {version!r}, and this program reads {VERSION}")
    gateway = document.get("gateway")
    if isinstance(gateway, dict) and all(value is None for value in gateway.values()):
        # How the source's system says that there is none just now.
        document = {**document, "gateway": None}
    agent = msgspec.convert(document, Agent)
    if agent.agent_id != key:
        raise ValueError(f"agent_id is {agent.agent_id}, which is not that of its folder")
    return agent


AGENTS = Space(
    "agents",
    Agent,
    schema_version=VERSION,
    upgrades={1: _refuse},
    indexes={"name": _by_name, "tmux_session": _by_tmux_session},
    layout=FilePerRecord("agents", "live_agents/{key}/record.json", Wire(to_file, from_file)),
)
