"""A manifest: the document that an agent's record points at. It decides how the agent is reached.

It lies at `<session_root>/manifest.json`. `holdfast agents run` and `start` write it, or a person.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import AgentKey, PathText, Text
from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import GATEWAY_PATIENCE_MAX_S, MANIFEST_BYTES_MAX

FILE_NAME = "manifest.json"

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=int(GATEWAY_PATIENCE_MAX_S) * 1000)]
Patience = Annotated[float, msgspec.Meta(gt=0, le=GATEWAY_PATIENCE_MAX_S)]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s\x00-\x1f]+\Z", max_length=2048)]

InterruptKey = Literal["C-c", "Escape"]
INTERRUPT_KEYS = get_args(InterruptKey)


class TmuxHandle(Plain, frozen=True, kw_only=True):
    """The tmux session that the agent was started in."""

    session_name: Text


class TmuxAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="tmux"):
    """The agent is reached by typing into its tmux session."""

    interrupt: InterruptKey = "C-c"
    quiet_ms: Milliseconds = 400
    ready_regex: Text | None = None
    socket_name: Text | msgspec.UnsetType = msgspec.UNSET
    socket_path: PathText | msgspec.UnsetType = msgspec.UNSET
    answer_timeout_s: Patience | msgspec.UnsetType = msgspec.UNSET
    settle_s: Patience | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        try:
            re.compile(self.ready_regex or "")
        except re.error as error:
            raise ValueError(
                f"ready_regex {self.ready_regex!r} is no regular expression: {error}"
            ) from None


class CommandAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """The agent is a program that runs once for each prompt."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    prompt_as: Literal["stdin", "argument"] = "stdin"
    timeout_s: Patience = 600.0


class RestAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="rest"):
    """The agent is reached through a terminal that another server serves."""

    base_url: Url
    terminal_id: Text
    preset: Literal["cao", "houmao_server"] = "cao"
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    prefix: str | msgspec.UnsetType = msgspec.UNSET
    interrupt_key: Text | msgspec.UnsetType = msgspec.UNSET
    timeout_s: Patience | msgspec.UnsetType = msgspec.UNSET
    answer_timeout_s: Patience | msgspec.UnsetType = msgspec.UNSET


class ManagedAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="managed"):
    """The agent is reached through the server that owns it."""

    managed_api_base_url: Url
    managed_agent_ref: Text
    timeout_s: Patience | msgspec.UnsetType = msgspec.UNSET
    answer_timeout_s: Patience | msgspec.UnsetType = msgspec.UNSET


Adapter = TmuxAdapter | CommandAdapter | RestAdapter | ManagedAdapter


class Manifest(Plain, frozen=True, kw_only=True):
    """One agent as it was started. A resume uses `generation_id` again."""

    schema_version: Literal[1] = 1
    agent_id: AgentKey
    agent_name: AgentKey
    generation_id: Text
    backend: Text
    tool: Text
    working_directory: PathText
    adapter: Adapter
    tmux: TmuxHandle | None = None
    agent_def_dir: PathText | None = None

    @property
    def session_name(self) -> str | None:
        """The name of its tmux session, if it has one."""
        return None if self.tmux is None else self.tmux.session_name

    @property
    def tmux_server(self) -> TmuxAddress | None:
        """The tmux server of its tmux session, if the manifest names one."""
        if not isinstance(self.adapter, TmuxAdapter):
            return None
        name, path = self.adapter.socket_name, self.adapter.socket_path
        if name is msgspec.UNSET and path is msgspec.UNSET:
            return None
        return TmuxAddress(name or None, path or None)


def from_json(data: bytes) -> Manifest:
    """Decode a manifest. Raises InvalidValue, naming the wrong field."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise InvalidValue(
            f"the manifest has {len(data)} bytes and may have {MANIFEST_BYTES_MAX}", bytes=len(data)
        )
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(
            f"it is no manifest: {error}. docs/agents.md shows one", why=str(error)
        ) from None


def tmux_adapter(settings: Mapping[str, Any]) -> TmuxAdapter:
    """The adapter of an agent in tmux. Raises InvalidValue, naming the wrong setting."""
    if settings.get("interrupt", "C-c") not in INTERRUPT_KEYS:
        keys = " or ".join(INTERRUPT_KEYS)
        raise InvalidValue(
            f"the interrupt key is {settings['interrupt']!r}: use {keys}",
            field="interrupt",
        )
    try:
        return msgspec.convert({"kind": "tmux", **settings}, TmuxAdapter)
    except msgspec.ValidationError as error:
        why = f"these settings cannot reach an agent in tmux: {error}"
        raise InvalidValue(why, field="adapter") from None


def as_json(manifest: Manifest) -> bytes:
    """Encode a manifest for a file, indented for people. Raises InvalidValue for a manifest that
    could not be decoded again.
    """
    data = to_json(manifest)
    from_json(data)
    return msgspec.json.format(data, indent=2) + b"\n"


_decoder = msgspec.json.Decoder(Manifest)
