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

from holdfast.adapters.tools.hook_command import report_words

EXTENSION = Path(__file__).with_name("gemini_extension")
REPORT_VARIABLE = "HOLDFAST_REPORT"
"""The command line that the extension's hooks run, without the event."""
_TAIL_BYTES = 256 << 10
_CANCELLED = "Request cancelled."


def is_linked(environment: Mapping[str, str]) -> bool:
    """Has the user linked the extension?"""
    home = environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or os.path.expanduser("~")
    return Path(home, ".gemini/extensions/holdfast/.gemini-extension-install.json").exists()


def environment_with_hooks(folder: Path) -> dict[str, str]:
    """What is added to the environment so that the extension's hooks report into `folder`."""
    return {REPORT_VARIABLE: shlex.join(report_words(folder, "")[:-1])}


def was_cancelled(transcript: str) -> bool:
    """Does its record of the conversation say that the last turn was cancelled? The hook for the
    end of a turn does not say so.
    """
    try:
        with open(transcript, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - _TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return False
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == "info" and entry.get("content") == _CANCELLED:
            return True
        if kind == "user":
            return False
    return False
