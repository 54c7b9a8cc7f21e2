"""The command line of a hook that reports an event of its tool."""

import os
import shlex
import sys
from pathlib import Path

from holdfast.adapters import agent_report


def report_command(folder: Path, event: str) -> str:
    """The command line that leaves a report of that event in `folder`, for a shell."""
    return shlex.join(report_words(folder, event))


def report_words(folder: Path, event: str) -> list[str]:
    """The same as words."""
    program = os.path.abspath(agent_report.__file__)
    return [sys.executable, "-I", "-S", program, str(folder), event]
