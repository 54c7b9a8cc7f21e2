"""Answers and errors as the protocol carries them: structured, and the same as text for clients
that know no structure.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mcp.types as types
from msgspec.structs import replace

from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import (
    Corrupt,
    DeadlockDetected,
    EAgain,
    Full,
    HoldfastError,
    Lost,
    Misuse,
    NotFound,
    NotLoaded,
    Refused,
    Unavailable,
)
from holdfast.surfaces.mcp.answers import Answer, Notice

Complete = Callable[[str], str]
"""A message, with its commands completed: an agent that has a shell runs them there, where no
option chooses the store.
"""

_NEXT: Sequence[tuple[type[HoldfastError], str]] = (
    (DeadlockDetected, "release what you hold, then acquire everything you need in one call"),
    (Lost, "stop that work now: it is not yours any more. Begin anew if it is still needed"),
    (Misuse, "mend the arguments and call again"),
    (
        NotFound,
        "check the name: whoami lists your handles, find_agents the agents, status shows locks "
        "and jobs",
    ),
    (Full, "release what you do not need, or wait for your other calls, then call again"),
    (EAgain, "wait a little, then call again"),
    (
        NotLoaded,
        "load it with yield_or_swap and action swap, or call again with wait_s to wait until "
        "somebody has",
    ),
    (Refused, "look with status at what stands in the way"),
    (Unavailable, "call again in a moment; what you hold is kept as long as this connection lives"),
    (Corrupt, "do not work around it: tell a person"),
    (HoldfastError, "tell a person"),
)
_OWN_WORK = "yield your own work with yield_or_swap and action yield, then ask again"
_NO_GATEWAY = (
    "see with find_agents who is there and has a gateway; if this one should, call again later or "
    "tell a person"
)


def answered(answer: Answer, pending: tuple[Notice, ...]) -> types.CallToolResult:
    """What a tool came to."""
    whole = replace(answer, pending=pending)
    return types.CallToolResult(content=[_text(to_json(whole))], structured_content=to_plain(whole))


def refused(
    error: HoldfastError, pending: tuple[Notice, ...] = (), complete: Complete = str
) -> types.CallToolResult:
    """Why a tool failed, for the model to read: the code of the tree, the words, and what to do
    next.
    """
    words = complete(error.message)
    told = {
        "error": {
            "code": error.code,
            "message": words,
            "fields": _plain(dict(error.fields)),
            "next": _next(error),
        },
        "pending": to_plain(pending),
    }
    return types.CallToolResult(
        content=[_text(to_json(told))], structured_content=told, is_error=True
    )


def _next(error: HoldfastError) -> str:
    if isinstance(error, Unavailable) and "agent" in error.fields:
        # A gateway that nobody serves is not there in a moment either.
        return _NO_GATEWAY
    if isinstance(error, DeadlockDetected) and "recipe" in error.fields:
        return _OWN_WORK
    return next(words for kind, words in _NEXT if isinstance(error, kind))


def bug(error: Exception) -> HoldfastError:
    """What is said of what nobody expected: no more than that."""
    logging.getLogger("holdfast.mcp").error("bug", exc_info=error)
    return HoldfastError(
        f"unexpected {type(error).__name__}: this is a bug; the server's log says where"
    )


def _text(content: bytes) -> types.TextContent:
    return types.TextContent(text=content.decode())


def _plain(value: Any) -> Any:
    try:
        return to_plain(value)
    except (TypeError, ValueError):
        return str(value)
