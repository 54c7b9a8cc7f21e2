"""An uncontended lock: the cost of taking and releasing it."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import locking, servers
from bench.locking import ADVISORY, HOLDFAST, HOLDFAST_POSTGRES, LIBRARIES, Kind, Opens
from bench.measure import Contender, Lab, Series, find, ratio
from bench.report import EQUAL, LESS, Row, Verdict

NAME = "locks"
COLUMN = "a killed holder's lock"

_ONE = ("lock",)
_FIVE = tuple(f"lock-{number}" for number in range(5))


class Pair:
    """Take the locks and release them."""

    def __init__(self, folder: Path, number: int, *, opens: Opens, names: Sequence[str]) -> None:
        self._peer = opens(folder, number, names)
        self._names = names

    def __call__(self) -> bool:
        self._peer.acquire(self._names)
        self._peer.release(self._names)
        return True

    def close(self) -> None:
        self._peer.close()


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        running = {
            "redis": stack.enter_context(servers.redis()),
            "postgres": stack.enter_context(servers.postgres()),
        }
        kinds, absent = locking.take_part(locking.KINDS, running)
        return lab.rows(
            {
                "Lock pair, uncontended": partial(_one, lab, kinds, absent),
                "Five locks, uncontended": partial(_five, lab, kinds, absent),
            }
        )


def _contenders(lab: Lab, kinds: Sequence[Kind], names: Sequence[str]) -> list[Contender]:
    return [
        Contender(
            kind.name,
            kind.killed,
            lab.race(
                prepare=partial(locking.prepare, opens=kind.opens, names=names),
                cast=partial(Pair, opens=kind.opens, names=names),
                seconds=0.3,
                warm_up_s=0.1,
            ),
            kind.limit,
        )
        for kind in kinds
    ]


def _one(lab: Lab, kinds: Sequence[Kind], absent: Sequence[str]) -> Row:
    series = lab.interleave(
        _contenders(lab, kinds, _ONE),
        judged=lambda found: [one.figure for one in [*_fastest(found), *_on_postgres(found)]],
    )
    return Row(
        name="locks-pair",
        title="Lock pair, uncontended",
        says="One process takes and releases a lock again and again; no other process wants "
        "it. Each library is used as its documentation shows, in its fastest proper "
        "setting: fasteners' InterProcessLock; filelock's FileLock with "
        "`thread_local=False`; portalocker's Lock with blocking flags on an unbuffered "
        "file; a lock of tooz's coordinator; diskcache's Lock in a cache that evicts and "
        f"syncs nothing; redis-py's Lock with a lease of {locking.LEASE_S:g} s, over a "
        "socket file, with hiredis, on a server that stores nothing on disk; "
        "`pg_advisory_lock` by prepared statements of psycopg, over a socket file. "
        "PostgreSQL has its default settings. Limits: the bare system call on a file that "
        "stays open, the same through portalocker's function, and a semaphore.",
        series=series,
        verdicts=[
            *_fastest(series, 2.0, " (aim 1)"),
            *_on_postgres(series, 2.5),
        ],
        column=COLUMN,
        logarithmic=True,
        absent=absent,
        notes=_peers(kinds, servers.versions()),
    )


def _five(lab: Lab, kinds: Sequence[Kind], absent: Sequence[str]) -> Row:
    series = lab.interleave(_contenders(lab, kinds, _FIVE))
    return Row(
        name="locks-five",
        title="Five locks, uncontended",
        says="The same with a set of five names. Holdfast takes them in one request, all or none. "
        "The others take one after the other, sorted; PostgreSQL takes them in one statement.",
        series=series,
        verdicts=[*_fastest(series, 0.8), *_on_postgres(series)],
        column=COLUMN,
        logarithmic=True,
        absent=absent,
    )


def _fastest(series: Sequence[Series], at_most: float = math.nan, aim: str = "") -> list[Verdict]:
    """Compare with the fastest of the libraries that need no server."""
    ours = find(series, HOLDFAST)
    libraries = [one for one in series if one.contender.name in LIBRARIES]
    if ours is None or not libraries:
        return []
    fastest = max(libraries, key=lambda one: one.spread(lambda sample: sample.rate).median)
    took = ratio(fastest, ours, lambda sample: sample.rate)
    what = f"time, Holdfast to the fastest library ({fastest.contender.name})"
    target = f"at most {at_most:g}{aim}"
    return [Verdict(what, target, took, took.median <= at_most, _PAIR_MISSED, against=LESS)]


_PAIR_MISSED = (
    "The two SQLite statements of a pair take about as long as a whole pair of such a "
    "library (row *Volatile pair*). The rest is Python code for the owner, the token and the "
    "order of waiters, which the others lack."
)


def _on_postgres(series: Sequence[Series], at_most: float | None = None) -> list[Verdict]:
    ours, theirs = find(series, HOLDFAST_POSTGRES), find(series, ADVISORY)
    if ours is None or theirs is None:
        return []
    took = ratio(theirs, ours, lambda sample: sample.rate)
    return [
        Verdict(
            "time, Holdfast on PostgreSQL to its advisory lock",
            "" if at_most is None else f"at most {at_most:g}",
            took,
            None if at_most is None else took.median <= at_most,
            _ADVISORY_MISSED,
            against=EQUAL,
        )
    ]


_ADVISORY_MISSED = (
    "An advisory lock lives in the server's memory: one message to take it, one to release it, and "
    "no disk. A grant of Holdfast is a row with its owner and token, which survives a crash of the "
    "server, so both steps wait for its disk."
)


def _peers(kinds: Sequence[Kind], running: Mapping[str, str]) -> str:
    """What each peer is, and what it lacks."""
    lines = [
        "What each of them knows besides the state of the lock:",
        "",
        "| | version | owner | fencing token | a killed holder's lock | order of waiters |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in kinds:
        server = f"server {running[kind.server]}" if kind.server else ""
        version = ", ".join(part for part in (locking.version(kind), server) if part)
        lines.append(
            f"| {kind.name} | {version} | {kind.owner} | {kind.token} | {kind.killed} | "
            f"{kind.order} |"
        )
    return "\n".join(lines)
