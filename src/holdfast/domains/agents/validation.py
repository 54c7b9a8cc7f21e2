"""The checks of a record before it is published: nothing wrong is stored."""

import os
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.domains.agents.records import (
    HEADLESS,
    TMUX_BACKED,
    Agent,
)
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue

P = TypeVar("P", bound=Plain)


def check_backend(backend: str, session_name: str | None) -> str:
    """Return a known backend. Raises InvalidValue for an unknown one, and for an interactive agent
    without a tmux session: nobody could control it, and it would count as gone when its launcher
    ends.
    """
    if backend == "local_interactive" and session_name is None:
        raise InvalidValue(
            "a local_interactive agent runs in a tmux session, and none is named: give its name "
            "(--tmux-session), or another backend, such as command",
            field="session_name",
        )
    if backend in TMUX_BACKED or re.match(HEADLESS, backend):
        return backend
    known = ", ".join(TMUX_BACKED)
    raise InvalidValue(
        f"{backend[:40]!r} is not a backend: use {known}, or another TOOL_headless", field="backend"
    )


def check_draft(draft: Agent) -> Agent:
    """Return a record that may be published. Raises InvalidValue, naming the field."""
    for field in draft.runtime.__struct_fields__:
        path = getattr(draft.runtime, field)
        if isinstance(path, str) and path.strip() and not os.path.isabs(path):
            raise InvalidValue(
                f"{field} is {path[:80]!r}, which is not absolute: give the whole path", field=field
            )
    if draft.gateway is not None and not os.path.isabs(str(draft.gateway.state_path)):
        raise InvalidValue(
            "gateway.state_path is not absolute: give the whole path", field="gateway.state_path"
        )
    for field, text in _texts(msgspec.to_builtins(check_fields(draft))):
        if not text.isprintable():
            raise InvalidValue(
                f"{field} has control characters, or is not UTF-8: leave them out", field=field
            )
    # In a tmux target, . and : address a window or a pane of another session.
    if draft.session_name is not None and set(".:") & set(draft.session_name):
        raise InvalidValue(
            f"terminal.session_name {draft.session_name!r} cannot name a tmux session: tmux writes "
            "_ for . and :",
            field="terminal.session_name",
        )
    return draft


def check_fields(value: P) -> P:
    """Return a value whose fields have their declared types: msgspec checks them when it decodes,
    and not when the program makes a value. Raises InvalidValue, naming the field.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        field = str(error).rpartition("$.")[2].rstrip("`")
        texts = _texts(msgspec.to_builtins(value))
        if any(path == field and not text.strip() for path, text in texts):
            why = "is blank: give a value, or leave it out"
        else:
            why = f"cannot be published: {error}"
        raise InvalidValue(f"{field} {why}", field=field) from None


def _texts(parts: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in parts.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{path}{name}.")
        elif isinstance(value, str):
            yield f"{path}{name}", value
