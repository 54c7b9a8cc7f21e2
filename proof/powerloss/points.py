"""When the power fails: random instants of a recording, rare ones as often as common ones."""

import random
import re

from proof.powerloss.operations import Acknowledged, Operation, Resized, Synced, Written
from proof.powerloss.trace import Trace

_ACKNOWLEDGED_SHARE = 0.3
"""The share of the instants right after an acknowledgement, when it is newest."""
_BEFORE, _AFTER = 3, 8
"""How far an instant may lie from the operation it was chosen for."""


class Points:
    """Chooses instants, as the number of operations before them. Operations are sorted by action,
    file, and for a write whether it is at the beginning. Each kind is chosen equally often, so that
    the few moments at which a log is reset, copied or deleted get as many states as the thousands
    of plain writes.
    """

    def __init__(self, trace: Trace) -> None:
        self._length = len(trace.operations)
        self._kinds: dict[tuple[str, ...], list[int]] = {}
        self._promises: list[int] = []
        for place, operation in enumerate(trace.operations):
            if isinstance(operation, Acknowledged):
                self._promises.append(place)
            elif getattr(operation, "file", None) not in trace.noise:
                self._kinds.setdefault(_kind(operation, trace.names), []).append(place)
        self._names = sorted(self._kinds)

    def choose(self, rng: random.Random) -> int:
        if self._promises and rng.random() < _ACKNOWLEDGED_SHARE:
            return rng.choice(self._promises) + 1
        if not self._names:
            return self._length
        place = rng.choice(self._kinds[rng.choice(self._names)])
        return min(max(place + 1 + rng.randint(-_BEFORE, _AFTER), 0), self._length)


def _kind(operation: Operation, names: dict[int, str]) -> tuple[str, ...]:
    what = type(operation).__name__
    if isinstance(operation, Written):
        return what, _plain(names[operation.file]), "start" if operation.offset == 0 else ""
    if isinstance(operation, Resized):
        return what, _plain(names[operation.file])
    if isinstance(operation, Synced):
        return what, "" if operation.item is None else _plain(names[operation.item])
    entries = getattr(operation, "entries", ())
    return what, *(
        f"{_plain(entry.name)} {'' if entry.item is None else 'made'}" for entry in entries
    )


def _plain(name: str) -> str:
    """A name without its numbers: temporary files are of one kind."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "", name)
