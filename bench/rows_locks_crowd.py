"""Contended locks: who gets them, how soon, and how long they are idle in between."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import locking, servers, turns
from bench.locking import ADVISORY, FASTENERS, FILELOCK, FLOCK, HOLDFAST, REDIS, Kind
from bench.measure import Contender, Lab, Sample, Series, Spread, find, ratio
from bench.report import EQUAL, LESS, Row, Verdict
from bench.rows_locks import COLUMN

NAME = "locks-crowd"

_ALL = (HOLDFAST, ADVISORY, REDIS, FILELOCK, FASTENERS, FLOCK)
_SORTED = "flock, five files sorted"


@dataclass(frozen=True)
class _Crowd:
    """Some processes at one lock, and who is measured with them."""

    processes: int
    peers: tuple[str, ...]
    seconds: float
    warm_up_s: float
    """Until all have had their first turn: a hundred processes on few cores need a while."""
    rounds: int | None = None
    """None: more where the judged ratio spreads widely."""


_CROWDS = (
    _Crowd(2, _ALL, seconds=0.6, warm_up_s=0.2, rounds=2),
    _Crowd(8, _ALL, seconds=0.8, warm_up_s=0.3),
    _Crowd(50, (HOLDFAST, ADVISORY, REDIS, FILELOCK), seconds=1.6, warm_up_s=1.0),
    _Crowd(100, (HOLDFAST, FILELOCK), seconds=3.0, warm_up_s=2.0),
)


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        running = {
            "redis": stack.enter_context(servers.redis()),
            "postgres": stack.enter_context(servers.postgres()),
        }
        crowds = {
            f"One lock, {crowd.processes} processes": partial(_crowd, lab, running, crowd)
            for crowd in _CROWDS
        }
        return lab.rows(
            {
                **crowds,
                "Lock handed over": partial(_handed, lab, running),
                "Five of fifty locks at once": partial(_fifty, lab),
            }
        )


def _take_part(
    running: Mapping[str, str | None], names: Sequence[str]
) -> tuple[list[Kind], list[str]]:
    return locking.take_part(locking.long_leases(locking.kinds(*names)), running)


def _crowd(lab: Lab, running: Mapping[str, str | None], crowd: _Crowd) -> Row:
    kinds, absent = _take_part(running, crowd.peers)
    race = partial(
        _race,
        lab,
        cast=turns.OneLock,
        names=turns.ONE,
        processes=crowd.processes,
        seconds=crowd.seconds,
        warm_up_s=crowd.warm_up_s,
    )

    def judged(series: Sequence[Series]) -> list[Spread]:
        found = _against_all(series, crowd.processes)
        return [one.figure for one in found if one.target and "throughput" in one.what]

    series = lab.interleave(
        _contenders(kinds, race),
        rounds=crowd.rounds and min(crowd.rounds, lab.rounds),
        judged=judged,
    )
    return Row(
        name=f"locks-crowd-{crowd.processes}",
        title="One lock",
        variant=f"{crowd.processes} processes",
        size=crowd.processes,
        says=_CROWD_SAYS,
        series=series,
        verdicts=_crowd_verdicts(series, crowd.processes),
        column=COLUMN,
        logarithmic=True,
        absent=absent,
    )


_CROWD_SAYS = (
    "All processes take the lock, do next to nothing, release it, and ask again at "
    "once. The clock starts when all have had a turn. A hand-over is the time from just before "
    "one process's release to just "
    "after another's entry; a process that takes the lock from itself does not count. "
    "The libraries' hand-overs are short here because a process that asks again at "
    "once keeps the lock busy and the others out: only those count that came just "
    "between two of its turns. The row *Lock handed over* shows how long a lock lies "
    "idle when its holder does not ask again. The PostgreSQL advisory lock is the peer of equal "
    "promise: its waiters queue, sleep until they are woken, and a dead session frees it."
)


def _crowd_verdicts(series: Sequence[Series], processes: int) -> list[Verdict]:
    ours = find(series, HOLDFAST)
    if ours is None:
        return []
    share = ours.spread(lambda sample: sample.share)
    if processes == 2:
        fair = Verdict("share, Holdfast", "", share, None)
    else:
        fair = Verdict(
            "share, Holdfast", "over 0.9", share, share.median > 0.9, _FEW_TURNS, against=EQUAL
        )
    return [*_against_all(series, processes), fair]


def _against_all(series: Sequence[Series], processes: int) -> list[Verdict]:
    """Holdfast and each of the peers with which it is compared."""
    ours = find(series, HOLDFAST)
    fair, fast = find(series, ADVISORY), find(series, FILELOCK)
    out = []
    if ours is not None and fair is not None:
        rate = ratio(ours, fair, lambda sample: sample.rate)
        judged = processes in (8, 50)
        out.append(
            Verdict(
                "throughput, Holdfast to the PostgreSQL advisory lock",
                "at least 0.8 (aim 1)" if judged else "",
                rate,
                rate.median >= 0.8 if judged else None,
                _TURN,
                against=EQUAL,
            )
        )
    if ours is not None and fast is not None:
        rate = ratio(ours, fast, lambda sample: sample.rate)
        wait = ratio(ours, fast, lambda sample: sample.worst_s)
        judged = processes == 100
        out += [
            Verdict(
                "throughput, Holdfast to filelock",
                "over 0.6 (aim 1)" if judged else "",
                rate,
                rate.median > 0.6 if judged else None,
                _WOKEN,
                against=LESS,
            ),
            Verdict(
                "worst wait, Holdfast to filelock",
                "under 0.5" if judged else "",
                wait,
                wait.median < 0.5 if judged else None,
                "It follows from the throughput.",
                against=LESS,
            ),
        ]
    return out


_FEW_TURNS = (
    "With few turns each in the time that is measured, one more or less is already several "
    "hundredths."
)
_TURN = (
    "A turn of Holdfast is Python code and SQLite statements in the process that asks, and in the "
    "one that hands over: for the owner, the token, the queue and the journal. A turn of the "
    "advisory lock is two messages to a server in C that keeps its queue in memory."
)
_WOKEN = (
    "With fair turns the lock goes to another process each time, which must be woken. "
    "A process of filelock mostly takes the lock from itself, as its share shows."
)


def _handed(lab: Lab, running: Mapping[str, str | None]) -> Row:
    kinds, absent = _take_part(running, _ALL)
    race = partial(_race, lab, cast=turns.ByTurns, names=turns.ONE, processes=2, seconds=1.0)
    contenders = _contenders(kinds, lambda kind: partial(_as_time, race(kind)))
    series = lab.interleave(contenders)
    verdicts = []
    for name, what, target, most in (
        (FILELOCK, "filelock", "at most 0.03 (aim 0.02)", 0.03),
        (ADVISORY, "the PostgreSQL advisory lock", "", None),
    ):
        if (ours := find(series, HOLDFAST)) and (theirs := find(series, name)):
            handed = ratio(ours, theirs, lambda sample: sample.p50_s)
            reached = None if most is None else handed.median <= most
            words = f"hand-over, Holdfast to {what}"
            verdicts.append(Verdict(words, target, handed, reached, _COLD, against=LESS))
    return Row(
        name="locks-handed",
        title="Lock handed over",
        says="One process holds the lock for 10 to 60 ms, so that a poll may come at any "
        "moment, while another waits for it. Then they change places. The time is from "
        "just before the release to just after the other's entry.",
        series=series,
        verdicts=verdicts,
        kind="time",
        column=COLUMN,
        logarithmic=True,
        absent=absent,
    )


_COLD = (
    "After tens of milliseconds of sleep the caches are cold, and a release takes several times as "
    "long as when warm. Then the other process must be scheduled, look, and return to its caller. "
    "flock shows what waking alone costs."
)


def _fifty(lab: Lab) -> Row:
    kinds = locking.kinds(HOLDFAST, FLOCK)
    # Here it is a peer and not a limit: a job that needs several locks today takes them like this.
    kinds = [
        replace(kind, name=_SORTED, limit=False) if kind.name == FLOCK else kind for kind in kinds
    ]
    race = partial(_race, lab, cast=turns.FiveOfFifty, names=turns.FIFTY, processes=20, seconds=2.0)
    ours, theirs = lab.interleave(_contenders(kinds, race))
    rate = ratio(ours, theirs, lambda sample: sample.rate)
    wait = ratio(ours, theirs, lambda sample: sample.worst_s)
    verdicts = [
        Verdict(
            "throughput, Holdfast to sorted flock", "over 1", rate, rate.median > 1, against=LESS
        ),
        Verdict(
            "worst wait, Holdfast to sorted flock",
            "at most 0.33",
            wait,
            wait.median <= 1 / 3,
            against=LESS,
        ),
    ]
    return Row(
        name="locks-fifty",
        title="Five of fifty locks at once, 20 processes",
        says="Twenty processes take five random locks of fifty, hold them for 20 ms and "
        "release them, for 2 s. Holdfast asks for all five at once and holds nothing "
        "while it waits. flock takes five files one after the other, sorted by name to "
        "avoid deadlocks, and holds the first ones while it waits for the next. Both use "
        "the same sets.",
        series=[ours, theirs],
        verdicts=verdicts,
        column=COLUMN,
    )


def _race(
    lab: Lab,
    kind: Kind,
    *,
    cast: type[turns.OneLock],
    names: Sequence[str],
    processes: int,
    seconds: float,
    warm_up_s: float = 0.2,
) -> Callable[[Path], Sample]:
    return lab.race(
        prepare=partial(turns.prepare, opens=kind.opens, names=names),
        cast=partial(cast, opens=kind.opens),
        seconds=seconds,
        warm_up_s=warm_up_s,
        processes=processes,
        log=turns.TurnLog,
    )


def _contenders(
    kinds: Sequence[Kind], race: Callable[[Kind], Callable[[Path], Sample]]
) -> list[Contender]:
    return [Contender(kind.name, kind.killed, race(kind), kind.limit) for kind in kinds]


def _as_time(race: Callable[[Path], Sample], folder: Path) -> Sample:
    """A round as its hand-overs."""
    sample = race(folder)
    return Sample(
        rate=sample.rate, p50_s=sample.handed_s, worst_s=sample.handed_worst_s, share=sample.share
    )
