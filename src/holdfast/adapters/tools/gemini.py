"""The hooks of Gemini CLI.

It takes hooks from settings files and from extensions only. The settings that an environment
variable can name must belong to root, so an ordinary user cannot use them. So the hooks are an
extension that the user links once. It does nothing in a Gemini that Holdfast has not started.
"""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters.tools.hook_command import report_words

EXTENSION = Path(__file__).with_name("gemini_extension")
REPORT_VARIABLE = "HOLDFAST_REPORT"
"""The command line that the extension's hooks run, without the event."""
_TAIL_BYTES = 2 << 20
_CANCELLED = "Request cancelled."


def is_linked(environment: Mapping[str, str]) -> bool:
    """Has the user linked the extension?"""
    home = environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or os.path.expanduser("~")
    return Path(home, ".gemini/extensions/holdfast/.gemini-extension-install.json").exists()


def environment_with_hooks(folder: Path) -> dict[str, str]:
    """What is added to the environment so that the extension's hooks report into `folder`."""
    return {REPORT_VARIABLE: shlex.join(report_words(folder, "")[:-1])}


class LastTurn(NamedTuple):
    """What Gemini's own record says of the last turn: its last answer, and whether it was
    cancelled. The hook for the end of a turn does not tell the second, and repeats pieces of the
    first.
    """

    answer: str | None = None
    cancelled: bool = False


def last_turn(transcript: str) -> LastTurn:
    """The last turn in a record of the conversation; an empty one without the record."""
    try:
        with open(transcript, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - _TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return LastTurn()
    turn = LastTurn()
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        kind = entry.get("type") if isinstance(entry, dict) else None
        content = entry.get("content") if kind is not None else None
        if kind == "user":
            break
        if kind == "info" and content == _CANCELLED:
            turn = turn._replace(cancelled=True)
        elif kind == "gemini" and turn.answer is None and isinstance(content, str) and content:
            turn = turn._replace(answer=content)
    return turn
