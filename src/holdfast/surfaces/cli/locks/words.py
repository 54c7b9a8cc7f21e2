"""How people are told of processes and spans of time."""

from datetime import datetime

from holdfast.kernel.holder import Holder
from holdfast.primitives.locks.inspect import Alive

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(begin: datetime, end: datetime) -> str:
    """How long it was, in its two largest units: `4 s`, `3 min`, `2 h 5 min`."""
    left = max(int((end - begin).total_seconds()), 0)
    for at, (size, unit) in enumerate(_SPANS):
        if left >= size:
            text = f"{left // size} {unit}"
            # Nobody needs the seconds of an hour, nor those of a few minutes.
            if at < 2 and (rest := left % size // _SPANS[at + 1][0]):
                text += f" {rest} {_SPANS[at + 1][1]}"
            return text
    return "0 s"


def process_words(process: Holder | None, alive: Alive) -> str:
    """A holder and what is known of it: `process 4242 "make", alive`, or `tree of process 4242
    "make", alive`.
    """
    if process is None:
        return "no process"
    label = f' "{process.label}"' if process.label else ""
    # Where the command is dead, other processes of its tree live.
    what = "tree of process" if process.tree else "process"
    return f"{what} {process.pid}{label}, {alive_words(process, alive)}"


def alive_words(process: Holder | None, alive: Alive) -> str:
    """Whether it is alive, and where it runs if that cannot be seen from here."""
    if process is not None and alive is Alive.UNKNOWN:
        return f"cannot be seen from here, host {process.host_id[:12]}"
    return alive.value


def short_process(process: Holder | None, alive: Alive) -> str:
    """The same in a few words: `process 4242, alive`."""
    return "no process" if process is None else f"process {process.pid}, {alive.value}"
