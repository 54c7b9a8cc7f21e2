"""Standard input, a bounded line at a time."""

import io
import json
import logging
import os
import re
import sys
from typing import BinaryIO

import msgspec

from holdfast.kernel.limits import MCP_LINE_BYTES_MAX

UNREADABLE = "unreadable message"
"""The tool of a call that could not be read; its answer says why."""

_log = logging.getLogger("holdfast.mcp")
_END_BYTES = 512
_ID = rb'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)'
# At the start or the end of a message: an `id` within its arguments is not the call's.
_FIRST = re.compile(rb"\s*\{[^{}\[\]]*?" + _ID)
_LAST = re.compile(rb"[,}]\s*" + _ID + rb"\s*\}\s*\Z")
_CALL = re.compile(rb'"method"\s*:\s*"tools/call"')


class Lines(io.TextIOBase):
    """Lines of UTF-8. One that is too long takes no more memory than one that is not.

    A call that is too long, or is not JSON, becomes a call of UNREADABLE. Any other message that is
    too long is skipped and logged.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._meta: object = None
        """What the client says of itself in every call, and what replaces a call must say too."""

    def readline(self, _: int = -1, /) -> str:  # type: ignore[override]
        """The next line; empty at the end."""
        while True:
            line = self._source.readline(MCP_LINE_BYTES_MAX + 1)
            if len(line) <= MCP_LINE_BYTES_MAX:
                return self._checked(line.decode("utf-8", errors="replace"))
            first, last = line[:_END_BYTES], line[-_END_BYTES:]
            while line and not line.endswith(b"\n"):
                line = self._source.readline(MCP_LINE_BYTES_MAX)
                last = (last + line)[-_END_BYTES:]
            _log.error("a message of more than %d bytes was skipped", MCP_LINE_BYTES_MAX)
            why = (
                f"it has more than {MCP_LINE_BYTES_MAX} bytes: put long input into a file and "
                "pass its path"
            )
            if call := _unreadable(first, last, why, self._meta):
                return call

    def _checked(self, line: str) -> str:
        content = line.encode()
        try:
            message = msgspec.json.decode(content or b"0")
        except (msgspec.DecodeError, RecursionError) as error:
            why = f"it is not JSON in UTF-8: {error}"
            return _unreadable(content[:_END_BYTES], content[-_END_BYTES:], why, self._meta) or line
        params = message.get("params") if isinstance(message, dict) else None
        if isinstance(params, dict) and "_meta" in params:
            self._meta = params["_meta"]
        return line


def _unreadable(first: bytes, last: bytes, why: str, meta: object) -> str:
    """The call that replaces one; empty when nobody waits for an answer."""
    known = _FIRST.match(first) or _LAST.search(last)
    if known is None or not (_CALL.search(first) or _CALL.search(last)):
        return ""
    params: dict[str, object] = {"name": UNREADABLE, "arguments": {"why": why}}
    params |= {} if meta is None else {"_meta": meta}
    head = f'{{"jsonrpc":"2.0","id":{known[1].decode()},"method":"tools/call"'
    return f'{head},"params":{json.dumps(params)}}}\n'


def standard_input() -> Lines:
    """Standard input for the protocol alone: a child that reads there finds nothing."""
    own = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return Lines(os.fdopen(own, "rb"))
