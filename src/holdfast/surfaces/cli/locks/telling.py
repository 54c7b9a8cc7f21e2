"""Telling on stderr who is being waited for, while a command waits for a lock."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from holdfast.kernel.errors import HoldfastError
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.inspect import HoldStatus, LockStatus
from holdfast.primitives.locks.records import conflict
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.locks.words import short_process, span
from holdfast.surfaces.cli.output import remark

_AGAIN_S = 1.0
"""No line comes sooner after the last."""
_SHARE = 100
"""A look at a long queue takes long: at most the hundredth part of the time goes into looking."""


class Telling(AbstractContextManager["Telling"]):
    """Says whom a request waits for, and again when that has changed. Begins to when `begin` is
    called, which is what `on_wait` of a request is for.
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
            # It is looking at the store at most, which is to be closed next.
            self._thread.join(_AGAIN_S)

    def begin(self, _: object) -> None:
        """The request waits."""
        if self._thread is None and not self._quiet:
            self._thread = threading.Thread(target=self._run, name="holdfast-telling", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Looks for itself: a waiter is not woken for what happens further ahead in its queue."""
        told = ""
        while not self._over.is_set():
            began = time.monotonic()
            try:
                found = waiting_line(
                    [self._hf.locks.status(name) for name in self._names], self._by, self._mode
                )
            except HoldfastError:
                # Whoever waits is told of a store that does not answer; this only describes.
                found = None
            if found is not None and found[0] != told and not self._over.is_set():
                told = found[0]
                remark(found[1])
            self._over.wait(max(_AGAIN_S, _SHARE * (time.monotonic() - began)))


def waiting_line(statuses: Sequence[LockStatus], by: str, mode: Mode) -> tuple[str, str] | None:
    """What matters of a wait of this process, and that in words; None when it does not wait any
    more.
    """
    pid = os.getpid()
    ahead: set[tuple[str, object]] = set()
    held: dict[tuple[int, ...], list[str]] = {}
    holders: dict[tuple[int, ...], str] = {}
    waits = passing = False
    for status in statuses:
        mine = [
            one
            for one in status.queue
            if one.by == by and one.process is not None and one.process.pid == pid
        ]
        if mine:
            waits = True
            before = [
                one
                for one in status.queue
                if one.position < mine[0].position and one.by != by and not one.looks
            ]
            ahead |= {(one.by, one.since) for one in before}
        against = [hold for hold in status.holds if hold.by != by and conflict(hold.mode, mode)]
        holds = [hold for hold in against if not hold.reclaimable]
        passing = passing or len(holds) < len(against)
        if holds:
            tokens = tuple(hold.token for hold in holds)
            held.setdefault(tokens, []).append(status.name)
            holders[tokens] = _holders(holds, status)
    if not waits or (passing and not held and not ahead):
        # What the dead hold is had in a moment: nobody is waited for.
        return None
    place = f"{len(ahead)} ahead of you" if ahead else "you are next"
    what = [f"{', '.join(names)}: held by {holders[tokens]}" for tokens, names in held.items()]
    if not what:
        what = [f"{', '.join(status.name for status in statuses)}: free, and others are before you"]
    return f"{held} {place}", f"waiting for {'; '.join([*what, place])}"


def _holders(holds: Sequence[HoldStatus], status: LockStatus) -> str:
    first = holds[0]
    words = (
        f"{first.by} ({short_process(first.process, first.alive)}) for "
        f"{span(first.since, status.now)}"
    )
    return words if len(holds) == 1 else f"{words} and {len(holds) - 1} more"
