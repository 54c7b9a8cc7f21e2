"""Standard input, a bounded line at a time."""

import io
import logging
import os
import sys
from typing import BinaryIO

from holdfast.kernel.limits import MCP_LINE_BYTES_MAX

_log = logging.getLogger("holdfast.mcp")


class Lines(io.TextIOBase):
    """Lines of UTF-8. One that is too long is skipped and told on stderr; it takes no more memory than one that is not."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def readline(self, _: int = -1, /) -> str:  # type: ignore[override]
        """The next line; empty at the end."""
        while True:
            line = self._source.readline(MCP_LINE_BYTES_MAX + 1)
            if len(line) <= MCP_LINE_BYTES_MAX:
                return line.decode("utf-8", errors="replace")
            while line and not line.endswith(b"\n"):
                line = self._source.readline(MCP_LINE_BYTES_MAX)
            _log.error("a message of more than %d bytes was skipped", MCP_LINE_BYTES_MAX)


def standard_input() -> Lines:
    """Standard input for the protocol alone: whatever else reads there, such as a child, finds nothing."""
    own = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return Lines(os.fdopen(own, "rb"))
