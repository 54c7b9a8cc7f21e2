"""Version 3 of an agent's record in a file: that of Houmao 2.0 to 2.4.

Their readers refuse every unknown field, and their cleanup removes what it cannot read. So a file
of version 3 has their fields alone. What only Holdfast knows of the agent is kept beside the file,
see `Wire.aside`.
"""

from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.kernel.agent_adapter import PathText, Text
from holdfast.kernel.codec import Instant, Plain, Value, to_plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.layout import Document

VERSION = 3
GATEWAY_HOSTS = ("127.0.0.1", "0.0.0.0")
"""The only hosts of a gateway that a record can name."""

Backend = Literal[
    "local_interactive",
    "codex_headless",
    "codex_app_server",
    "claude_headless",
    "kimi_headless",
    "cao_rest",
    "houmao_server_rest",
]
BACKENDS: tuple[str, ...] = Backend.__args__  # type: ignore[attr-defined]

State = Literal["active", "stopped", "relaunching", "retired"]
_ENDED = ("stopped", "retired")


class HoumaoLifecycle(Value, frozen=True, kw_only=True):
    """The state of an agent in a record of version 3, which stays when the agent has stopped.

    `relaunchable`: its own system can start it again. `last_session_name` is its last tmux session.
    """

    state: State
    relaunchable: bool
    state_updated_at: Instant
    stopped_at: Instant | None = None
    stop_reason: Text | None = None
    last_session_name: Text | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.stopped_at is not None) != self.ended:
            raise InvalidValue(
                f"stopped_at of an agent that is {self.state} is {self.stopped_at}: only an agent "
                "that is stopped or retired has that time, and needs it",
                field="lifecycle.stopped_at",
            )
        if self.stop_reason is not None and not self.ended:
            raise InvalidValue(
                f"an agent that is {self.state} has no stop_reason", field="lifecycle.stop_reason"
            )
        if self.state == "retired" and self.relaunchable:
            raise InvalidValue(
                "a retired agent cannot be relaunched", field="lifecycle.relaunchable"
            )

    @property
    def ended(self) -> bool:
        return self.state in _ENDED


class _Identity(Plain, frozen=True, kw_only=True):
    backend: Backend
    tool: Text


class _Runtime(Plain, frozen=True, kw_only=True):
    manifest_path: PathText
    session_root: PathText | None = None
    agent_def_dir: PathText | None = None


class _Terminal(Plain, frozen=True, kw_only=True):
    kind: Literal["tmux"] = "tmux"
    current_session_name: Text | None = None
    last_session_name: Text


class _Liveness(Plain, frozen=True, kw_only=True):
    published_at: Instant
    lease_expires_at: Instant


class _FilesystemMailbox(Plain, frozen=True, kw_only=True, tag_field="transport", tag="filesystem"):
    principal_id: Text
    address: Text
    filesystem_root: PathText
    bindings_version: Text


class _StalwartMailbox(Plain, frozen=True, kw_only=True, tag_field="transport", tag="stalwart"):
    principal_id: Text
    address: Text
    bindings_version: Text
    jmap_url: Text
    management_url: Text
    login_identity: Text
    credential_ref: Text


class _LifecyclePart(Plain, frozen=True, kw_only=True):
    state: State
    relaunchable: bool
    state_updated_at: Instant
    stopped_at: Instant | None = None
    stop_reason: Text | None = None


class _Gateway(Plain, frozen=True, kw_only=True):
    host: Literal["127.0.0.1", "0.0.0.0"]
    port: int
    state_path: PathText
    protocol_version: Literal["v1"]


class _Record(Plain, frozen=True, kw_only=True):
    """The document in a file of version 3."""

    schema_version: Literal[3]
    agent_name: Text
    agent_id: Text
    generation_id: Text
    lifecycle: _LifecyclePart
    identity: _Identity
    runtime: _Runtime
    terminal: _Terminal
    liveness: _Liveness | None = None
    gateway: _Gateway | None = None
    mailbox: _FilesystemMailbox | _StalwartMailbox | None = None


def to_current(document: Document) -> Document:
    """The fields of an `Agent` in a document of version 3. Raises ValueError for what the other
    system refuses too.
    """
    record = msgspec.convert(document, _Record)
    state, terminal = record.lifecycle, record.terminal
    lifecycle = HoumaoLifecycle(
        state=state.state,
        relaunchable=state.relaunchable,
        state_updated_at=state.state_updated_at,
        stopped_at=state.stopped_at,
        stop_reason=state.stop_reason,
        last_session_name=terminal.last_session_name,
    )
    lives = [record.liveness, terminal.current_session_name]
    if lifecycle.stopped_at is not None:
        if any([*lives, record.gateway]):
            raise ValueError(
                f"an agent that is {state.state} has no liveness, gateway or current_session_name"
            )
        # Its last lease is not recorded any more, and it ended with the agent at the latest.
        expires_at = lifecycle.stopped_at
        published_at = expires_at - timedelta(seconds=1)
    elif record.liveness is None or terminal.current_session_name is None:
        raise ValueError(f"an agent that is {state.state} needs liveness and current_session_name")
    else:
        published_at, expires_at = record.liveness.published_at, record.liveness.lease_expires_at
    session_name = terminal.current_session_name
    return {
        "agent_id": record.agent_id,
        "agent_name": record.agent_name,
        "generation_id": record.generation_id,
        "published_at": published_at,
        "lease_expires_at": expires_at,
        "identity": to_plain(record.identity),
        "runtime": to_plain(record.runtime),
        "terminal": None if session_name is None else {"session_name": session_name},
        "gateway": to_plain(record.gateway),
        "mailbox": to_plain(record.mailbox),
        "lifecycle": to_plain(lifecycle),
    }


def of_current(fields: dict[str, Any], lifecycle: HoumaoLifecycle) -> Document:
    """The document of version 3 with the fields of an `Agent`, as plain values."""
    terminal, gateway = fields["terminal"], fields["gateway"]
    session_name = None if terminal is None else terminal["session_name"]
    liveness = {name: fields[name] for name in ("published_at", "lease_expires_at")}
    return {
        "schema_version": VERSION,
        **{name: fields[name] for name in ("agent_name", "agent_id", "generation_id")},
        "lifecycle": {
            name: value
            for name, value in to_plain(lifecycle).items()
            if name != "last_session_name"
        },
        "identity": fields["identity"],
        "runtime": fields["runtime"],
        "terminal": {
            "kind": "tmux",
            "current_session_name": session_name,
            "last_session_name": lifecycle.last_session_name or session_name,
        },
        "liveness": None if lifecycle.ended else liveness,
        "gateway": gateway if gateway is not None and has_place_for(gateway["host"]) else None,
        "mailbox": fields["mailbox"],
    }


def has_place_for(host: str) -> bool:
    """Can a record of version 3 name a gateway on this host?"""
    return host in GATEWAY_HOSTS


def check(backend: str, session_name: str | None) -> None:
    """Raise InvalidValue for an agent that a record of version 3 has no place for."""
    if session_name is None:
        raise InvalidValue(
            "the records here have version 3 (agents.record_version), which only agents in tmux "
            "can have: name its tmux session, or start it with `holdfast agents start`",
            field="session_name",
        )
    if backend not in BACKENDS:
        raise InvalidValue(
            f"the records here have version 3 (agents.record_version), which does not know the "
            f"backend {backend!r}: use one of {', '.join(BACKENDS)}",
            field="backend",
        )
