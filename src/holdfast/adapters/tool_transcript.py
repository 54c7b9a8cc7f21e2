"""The record that Claude Code keeps of its conversation: of a turn that a person has stopped, it is
the only one.
"""

import json
import os
from typing import Any

from holdfast.kernel.errors import StoreUnavailable
from holdfast.system.access import open_file

_END_BYTES = 64 << 10
_STOPPED = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")
"""What it writes into the turn, as a text of its own."""


def was_stopped(transcript: str, prompt_id: str | None) -> bool:
    """Does the record in the file `transcript` say that a person stopped this turn?"""
    if not transcript or not prompt_id:
        return False
    try:
        # A plain file only: the agent itself may have said where it is.
        with open(open_file(transcript, os.O_RDONLY, make=False), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - _END_BYTES, 0))
            lines = file.read(_END_BYTES).splitlines()
    except (OSError, StoreUnavailable):
        return False
    mark = prompt_id.encode()
    return any(_says_stopped(line, prompt_id) for line in lines if mark in line)


def _says_stopped(line: bytes, prompt_id: str) -> bool:
    """A prompt or an answer may have the words too: only an entry with nothing else counts."""
    try:
        entry = json.loads(line)
        content: Any = entry["message"]["content"]
        return bool(
            entry["promptId"] == prompt_id
            and isinstance(content, list)
            and any(one.get("text") in _STOPPED for one in content)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
