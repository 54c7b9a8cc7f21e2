"""An agent's record: which generation is alive under an id, until when, and where its manifest is.

Version 2 is that of the registry in the source's system, field by field, so that a folder of it is
read as it is. Holdfast adds `holder`, `token` and `lease_s`, and leaves out `terminal` for what
runs without tmux.

An agent's name: `gpu` and its prefixed form are one, and the id that is given to nobody else
follows from it.

What agents run on. Only what is in tmux is controlled through its tmux session.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from holdfast.kernel.clock import render
from holdfast.kernel.codec import Instant, Plain, Record, to_plain
from holdfast.kernel.errors import InvalidName, InvalidValue, SchemaTooNew
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import Document, FilePerRecord, Wire
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import LABEL_CHARS_MAX, PATH_CHARS_MAX
from holdfast.kernel.names import check_agent_name
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space

PREFIXES = ("HOLDFAST-", "HOUMAO-")
"""What a name may be prefixed with by whoever types it."""


def bare(name: str) -> str:
    """The name without a known prefix."""
    if not name.startswith(PREFIXES):
        return name
    return next(name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix))


def inner(name: str, what: str = "agent name") -> str:
    """What makes a name that may be typed with or without a prefix one name.

    Raises InvalidName for what cannot name an agent, and for a prefix with no name behind it, or
    with another prefix.
    """
    found = bare(check_agent_name(name, what))
    if f"{found}-".startswith(PREFIXES) or not found:
        raise InvalidName(
            f"{name!r} is reserved: put a name of its own behind the prefix, as in "
            f"{PREFIXES[0]}gpu",
            what=what,
        )
    return found


def canonical(name: str, prefix: str) -> str:
    """The one form of a name under the configured prefix. Raises InvalidName as `inner` does."""
    return check_agent_name(prefix + inner(name))


def id_of(canonical_name: str) -> str:
    """The id of an agent that was given none: two publishers of one name meet on it."""
    from hashlib import md5

    return md5(canonical_name.encode(), usedforsecurity=False).hexdigest()


VERSION = 2

# As little as keeps blank ones out: it is run for every text of every record that is read. What may
# be published is checked by its publisher.
_NOT_BLANK = r"\S"

Text = Annotated[str, msgspec.Meta(pattern=_NOT_BLANK, max_length=LABEL_CHARS_MAX)]
PathText = Annotated[str, msgspec.Meta(pattern=_NOT_BLANK, max_length=PATH_CHARS_MAX)]
AgentKey = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")]


class Identity(Plain, frozen=True, kw_only=True):
    """What the agent is: what it runs on, and the tool that it is."""

    backend: Text
    tool: Text


class Runtime(Plain, frozen=True, kw_only=True):
    """Where its files are. Paths are absolute in what Holdfast publishes; elsewhere that is checked
    when they are used.
    """

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
    """One live agent. `token` is the revision of the publish that made it this generation's, 0 for
    another program's record.

    `mailbox` is the source system's own and is kept as it came. `holder` is the agent's own
    process, where its publisher named one. `lease_s` is the length of the lease it was published
    with, which whoever renews it for its publisher keeps to.
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
    """The document of a record in a file: what is not there is left out, as the source's system
    does not know all of it.
    """
    return {
        name: value
        for name, value in to_plain(agent).items()
        if value is not None and (name != "token" or value)
    }


def from_file(key: str, document: Document) -> Agent:
    """The record of a document in a file. Raises ValueError for what is none, or that of another
    agent, and SchemaTooNew.
    """
    version = document.get("schema_version")
    if isinstance(version, int) and version > VERSION:
        raise SchemaTooNew(
            f"agents/{key} has schema version {version} and this program knows up to {VERSION}: "
            "use a newer holdfast",
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


TMUX_BACKED: Mapping[str, bool] = {
    "local_interactive": True,
    "claude_headless": True,
    "codex_headless": True,
    "gemini_headless": True,
    "cao_rest": False,
    "houmao_server_rest": False,
    "command": False,
}
"""Those known by name. Any other `TOOL_headless` is in tmux too; `command` is a program in the
foreground, without tmux.
"""

_HEADLESS = re.compile(r"[a-z0-9]+_headless\Z")


def tmux_backed(backend: str) -> bool:
    """Does it run in tmux? An unknown one does not: nothing is controlled on a guess."""
    return TMUX_BACKED.get(backend, _HEADLESS.match(backend) is not None)


def check_backend(backend: str) -> str:
    """Return the backend if it is one. Raises InvalidValue."""
    if backend in TMUX_BACKED or _HEADLESS.match(backend):
        return backend
    known = ", ".join(TMUX_BACKED)
    raise InvalidValue(
        f"{backend[:40]!r} is no backend: use {known}, or another TOOL_headless", field="backend"
    )


def check_session(backend: str, session_name: str | None) -> None:
    """Refuse an interactive agent that does not say in which tmux session it is: nobody could
    control it, and when its launcher ends it would be taken for gone. Raises InvalidValue.
    """
    if backend == "local_interactive" and session_name is None:
        raise InvalidValue(
            "a local_interactive agent is in a tmux session, and none is named: give its name "
            "(--tmux-session), or say another "
            "backend, such as command",
            field="session_name",
        )
