"""A manifest: the document that an agent's record points at. It decides how the agent is reached.

It lies at `<session_root>/manifest.json`. `holdfast agents run` and `start` write it, or a person.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.domains.agents import houmao_manifest
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import AgentKey
from holdfast.kernel.agent_adapter import (
    AgentAdapter,
    PathText,
    Text,
    TmuxAdapter,
    convert_settings,
)
from holdfast.kernel.codec import Plain, to_json, to_plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import MANIFEST_BYTES_MAX

FILE_NAME = "manifest.json"


class TmuxHandle(Plain, frozen=True, kw_only=True):
    """The tmux session that the agent was started in."""

    session_name: Text


class Manifest(Plain, frozen=True, kw_only=True):
    """One agent as it was started. A resume uses `generation_id` again."""

    schema_version: Literal[1] = 1
    agent_id: AgentKey
    agent_name: AgentKey
    generation_id: Text
    backend: Text
    tool: Text
    working_directory: PathText
    adapter: AgentAdapter
    tmux: TmuxHandle | None = None
    agent_def_dir: PathText | None = None

    @property
    def session_name(self) -> str | None:
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
        document = houmao_manifest.to_current(msgspec.json.decode(data, type=dict[str, Any]))
        return msgspec.convert(document, Manifest)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(
            f"it is not a manifest: {error}. docs/agents.md shows one", why=str(error)
        ) from None


def tmux_adapter(settings: Mapping[str, Any]) -> TmuxAdapter:
    """The adapter of an agent in tmux. Raises InvalidValue, naming the wrong setting."""
    if (key := settings.get("interrupt", "C-c")) not in ("C-c", "Escape"):
        raise InvalidValue(f"the interrupt key is {key!r}: use C-c or Escape", field="interrupt")
    return convert_settings({"kind": "tmux", **settings}, TmuxAdapter)


def encode(manifest: Manifest) -> bytes:
    """A manifest as JSON. Raises InvalidValue for one that is not UTF-8."""
    try:
        return to_json(manifest)
    except UnicodeEncodeError as error:
        # A path, or a word of a command line, may have bytes of any encoding.
        raise InvalidValue(
            f"{error.object[:60]!a} is not UTF-8, and an agent's manifest must be: rename the "
            "file or folder, or write it in UTF-8"
        ) from None


def as_json(manifest: Manifest, *, houmao_since: datetime | None = None) -> bytes:
    """Encode a manifest for a file, indented for people. With `houmao_since`, when the agent was
    started, also Houmao 2 reads it. Raises InvalidValue for a manifest that could not be decoded
    again.
    """
    data = encode(manifest)
    if houmao_since is not None:
        data = to_json(houmao_manifest.of_current(to_plain(manifest), created_at=houmao_since))
    from_json(data)
    return msgspec.json.format(data, indent=2) + b"\n"
