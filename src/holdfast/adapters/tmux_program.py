"""The tmux program, run with a time limit.

A tmux server that is stopped, or busy beyond measure, answers nobody, and the program that asks it would wait for ever. Here it
is ended when its time is over. What it was to do may still happen, once the server goes on: then the outcome is unknown.
"""

import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.errors import Unavailable, UpstreamUnavailable
from holdfast.kernel.limits import TMUX_ANSWER_S


class Said(NamedTuple):
    """What tmux answered: its exit status, the lines it printed, and what it complained of."""

    status: int
    lines: list[str]
    complaint: str


def ask(words: Sequence[str], *, limit_s: float = TMUX_ANSWER_S) -> Said:
    """Run `tmux WORDS`, and return what it says.

    Raises Unavailable when there is no tmux here (nothing was done), and UpstreamUnavailable, with the outcome `unknown`, when
    it did not answer in time.
    """
    program = shutil.which("tmux")
    if program is None:
        raise Unavailable("there is no tmux on the PATH: install it, or use `holdfast agents run`", outcome="none")
    try:
        done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise UpstreamUnavailable(
            f"tmux did not answer within {limit_s:g} s: see whether its server is stopped or busy", outcome="unknown"
        ) from None
    except OSError as error:
        raise Unavailable(f"tmux cannot be run: {error.strerror}", outcome="none") from None
    said, complained = (text.decode(errors="backslashreplace").rstrip("\n") for text in (done.stdout, done.stderr))
    return Said(done.returncode, said.split("\n") if said else [], " ".join(complained.split("\n")))
