"""Version 4 of a manifest: that of Houmao 2.0 to 2.4, read as one of ours and written for them.

Their manifest says how a session was launched. Ours is inside, under `backend_state`, where their
schema allows any fields. Without it, the adapter follows from what theirs says of the session.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.kernel.clock import render
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.layout import Document

VERSION = 4
OWN_VERSION = 1
OWN_PART = "holdfast"
TERMINAL: Document = {"kind": "tmux"}
"""The adapter of an agent of Houmao in tmux; its manifest says no more."""
_HEADLESS = ("claude_headless", "codex_headless", "kimi_headless")


def to_current(document: Mapping[str, Any]) -> Document:
    """The fields of a `Manifest` in the document of a manifest's file, of either version. Raises
    InvalidValue for another version, and for one of version 4 that lacks what is needed.
    """
    version = document.get("schema_version", OWN_VERSION)
    if version == OWN_VERSION:
        return dict(document)
    if version != VERSION or isinstance(version, bool):
        raise InvalidValue(
            f"its schema_version is {version!r}, and this program reads {OWN_VERSION}, and "
            f"{VERSION} of Houmao 2: start the agent again with one of these",
            field="schema_version",
            version=version,
        )
    own = _part(document, "backend_state").get(OWN_PART)
    if isinstance(own, Mapping):
        return dict(own)
    names = ("agent_id", "agent_name", "backend", "tool", "working_directory")
    found: Document = {name: document.get(name) for name in names}
    found["generation_id"] = document.get("registry_generation_id")
    if missing := [name for name, value in found.items() if not isinstance(value, str)]:
        raise InvalidValue(
            f"as a manifest of version {VERSION} it lacks {', '.join(missing)}: the agent was not "
            "published with it"
        )
    session_name = _part(document, "tmux").get("session_name")
    found["tmux"] = None if session_name is None else {"session_name": session_name}
    found["agent_def_dir"] = _part(document, "runtime").get("agent_def_dir")
    adapter = _adapter(str(found["backend"]), document)
    return {"schema_version": OWN_VERSION, **found, "adapter": adapter}


def _adapter(backend: str, document: Mapping[str, Any]) -> Document:
    """How the agent is reached. A headless one is reached through its server alone: what is in its
    tmux session are the programs of single turns.
    """
    control = _part(_part(document, "gateway_authority"), "control")
    url, ref, terminal = (
        control.get(name) for name in ("api_base_url", "managed_agent_ref", "terminal_id")
    )
    if backend == "local_interactive":
        return dict(TERMINAL)
    if backend in _HEADLESS and url and ref:
        return {"kind": "managed", "managed_api_base_url": url, "managed_agent_ref": ref}
    if backend in ("cao_rest", "houmao_server_rest") and url and terminal:
        preset = {"cao_rest": "cao", "houmao_server_rest": "houmao_server"}[backend]
        return {"kind": "rest", "preset": preset, "base_url": url, "terminal_id": terminal}
    raise InvalidValue(
        f"its backend is {backend}, and it names no server under gateway_authority.control by "
        "which such an agent is reached: use the agent's own system",
        field="gateway_authority",
    )


def of_current(manifest: Document, *, created_at: datetime) -> Document:
    """The document of version 4 around a manifest of ours, of an agent in tmux. The other system
    can find and show the agent with it. It cannot start it again: the manifest says so.
    """
    tool, folder = manifest["tool"], manifest["working_directory"]
    session_name = manifest["tmux"]["session_name"]
    generation_id = manifest["generation_id"]
    # The path must be there, and there is none: the agent has no role and no brain of theirs.
    nowhere = {"role_name": "none", "brain_manifest_path": "/dev/null"}
    endpoint: Document = {"api_base_url": None, "managed_agent_ref": None, "terminal_id": None}
    return {
        "schema_version": VERSION,
        "backend": manifest["backend"],
        "tool": tool,
        **nowhere,
        "created_at_utc": render(created_at),
        "working_directory": folder,
        "agent_name": manifest["agent_name"],
        "agent_id": manifest["agent_id"],
        "tmux_session_name": session_name,
        "registry_generation_id": generation_id,
        # We keep the record: their runtime must not publish it again.
        "registry_launch_authority": "external",
        "runtime": {
            "session_id": manifest["agent_id"],
            "agent_def_dir": manifest.get("agent_def_dir"),
            "registry_generation_id": generation_id,
            "registry_launch_authority": "external",
        },
        "tmux": {"session_name": session_name},
        "interactive": {"turn_index": 0, "working_directory": folder},
        "agent_launch_authority": {
            "backend": manifest["backend"],
            "tool": tool,
            "tmux_session_name": session_name,
            "working_directory": folder,
            "posture_kind": "unavailable",
        },
        "gateway_authority": {"attach": endpoint, "control": endpoint},
        "launch_plan": {
            "backend": manifest["backend"],
            "tool": tool,
            "executable": tool,
            "args": [],
            "working_directory": folder,
            "home_selector": {"env_var": "HOME", "home_path": "/"},
            "env_var_names": [],
            "role_injection": {"method": "bootstrap_message", "role_name": "none"},
            "metadata": {},
        },
        "local_interactive": {
            "turn_index": 0,
            "role_bootstrap_applied": False,
            "working_directory": folder,
        },
        "backend_state": {OWN_PART: manifest},
    }


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
