"""What is said while a command waits for a lock, and the job of a command without --by."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.inspect import HoldStatus, LockStatus
from holdfast.primitives.locks.records import PART, conflict
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.quick import collect_garbage

JOB_VARIABLE = "HOLDFAST_LOCK_BY"
"""The job of a command under `locks run`; a `locks run` inside it is a part of that job."""
_PAUSE_S = 1.0
"""The least time between two lines."""
_SHARE = 100
"""Reading a long queue takes long: at most a hundredth of the time is spent on it."""


def own_job(verb: str) -> str:
    """A job of its own for a command without --by: under `locks run`, a part of that run's job."""
    own = f"{verb}-{os.getpid()}-{os.urandom(3).hex()}"
    around = os.environ.get(JOB_VARIABLE)
    part = f"{around}{PART}{own}"
    return part if around and len(part) <= LABEL_CHARS_MAX else own


class WaitNotes(AbstractContextManager["WaitNotes"]):
    """Says on stderr who holds what a request waits for, and again when that has changed. It starts
    with `begin`, which is for `on_wait` of a request.
    """

    def __init__(
        self, hf: Holdfast, names: Sequence[str], by: str, mode: Mode, *, quiet: bool
    ) -> None:
        self._hf = hf
        self._names = tuple(dict.fromkeys(names))
        self._by = by
        self._mode = mode
        self._quiet = quiet
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            # It is reading the store at most, which is closed next.
            self._thread.join(_PAUSE_S)

    def begin(self, _: object) -> None:
        """The request waits."""
        collect_garbage()
        if self._thread is None and not self._quiet:
            self._thread = threading.Thread(target=self._run, name="holdfast-notes", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        # Polls: a waiter is not woken for what happens further ahead in its queue.
        said = ""
        while not self._over.is_set():
            began = time.monotonic()
            try:
                statuses = [self._hf.locks.status(name) for name in self._names]
                found = waiting_line(statuses, self._by, self._mode)
            except HoldfastError:
                # The waiter itself reports a store that does not answer.
                found = None
            if found is not None and found[0] != said and not self._over.is_set():
                said = found[0]
                remark(found[1])
            self._over.wait(max(_PAUSE_S, _SHARE * (time.monotonic() - began)))


def waiting_line(statuses: Sequence[LockStatus], by: str, mode: Mode) -> tuple[str, str] | None:
    """A key of what this process waits for, and that in words; None when it does not wait."""
    pid = os.getpid()
    ahead: set[tuple[str, object]] = set()
    held: dict[tuple[int, ...], list[str]] = {}
    holders: dict[tuple[int, ...], str] = {}
    waits = reclaimable = False
    for status in statuses:
        mine = [
            one
            for one in status.queue
            if one.by == by and one.process is not None and one.process.pid == pid
        ]
        if mine:
            waits = True
            ahead |= {
                (one.by, one.since)
                for one in status.queue
                if one.position < mine[0].position and one.by != by and not one.looks
            }
        against = [hold for hold in status.holds if hold.by != by and conflict(hold.mode, mode)]
        holds = [hold for hold in against if not hold.reclaimable]
        reclaimable = reclaimable or len(holds) < len(against)
        if holds:
            tokens = tuple(hold.token for hold in holds)
            held.setdefault(tokens, []).append(status.name)
            holders[tokens] = _holders(holds, status)
    if not waits or (reclaimable and not held and not ahead):
        # The holds of dead processes are granted in a moment.
        return None
    place = f"{len(ahead)} ahead of you" if ahead else "you are next"
    what = [f"{', '.join(names)}: held by {holders[tokens]}" for tokens, names in held.items()]
    if not what:
        names = ", ".join(status.name for status in statuses)
        what = [f"{names}: free, and others are before you"]
    return f"{held} {place}", f"waiting for {'; '.join([*what, place])}"


def _holders(holds: Sequence[HoldStatus], status: LockStatus) -> str:
    first = holds[0]
    process = "no process"
    if first.process is not None:
        process = f"process {first.process.pid}, {first.alive.value}"
    # Loaded here: most commands wait for nothing, and the words of tables come with it.
    from holdfast.surfaces.cli.lock_text import span

    words = f"{first.by} ({process}) for {span(first.since, status.now)}"
    return words if len(holds) == 1 else f"{words} and {len(holds) - 1} more"
